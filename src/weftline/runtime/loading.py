"""How a run is loaded: the row's state plus the newer facts, and the content from the same read."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal, TypeAlias

from msgspec import DecodeError, convert
from msgspec.structs import replace

from weftline.errors import Conflict, WeftlineError
from weftline.kernel.bodies import decode_created, decode_message
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import decode_fact
from weftline.kernel.evolve import fold
from weftline.kernel.state import FOLD, State, decode_state
from weftline.plan import RunPlan, decode_plan
from weftline.runtime import ids
from weftline.runtime.conversation import KINDS, Conversation
from weftline.runtime.cutting import input_bytes
from weftline.runtime.live import BEHIND, PARKED, LiveRun, Row, RunLog, StoredState, WorkingSet
from weftline.runtime.streamed import streamed_answer
from weftline.runtime.supported import unsupported
from weftline.store.base import Loaded, LogReader, LogStore, RunRow
from weftline.store.claims import same_owner

logger = logging.getLogger(__name__)

_Ended: TypeAlias = Literal["succeeded", "failed", "cancelled"]
_DECODE_ON_LOOP_BYTES = 256 * 1024
"""About a millisecond; more is decoded in a thread."""


async def load_run(store: LogStore, key: int) -> tuple[LiveRun, RunRow] | None:
    """Claims a run and brings it into memory, parked; with its row. None for an unknown run.

    Raises:
        Conflict: `unsupported_run`, for a run written by a newer version. It is left alone.
    """
    loaded = await store.claim(key, kinds=KINDS)
    if loaded is None:
        return None
    row = loaded.row
    run_id = ids.run_id(row.key, row.salt)
    if newer := unsupported(row):
        store.release(key, loaded.epoch)
        raise Conflict(f"This run was written by a newer version of Weftline ({newer}).", code="unsupported_run")
    try:
        state = await _state(store, loaded)
        if _size(loaded) <= _DECODE_ON_LOOP_BYTES:
            plan, conversation = _content(loaded, state)
        else:
            plan, conversation = await asyncio.to_thread(_content, loaded, state)
        work = WorkingSet(run_id, plan, conversation, secrets=loaded.secrets)
        if state.attempt.open:
            work.answering = await streamed_answer(store, key)
    except UNREADABLE:
        state = State(rules=row.rules, version=row.version, created=True, thread=row.thread, broken="it cannot be read")
        if row.ended_at is None:
            logger.exception("run %s: its log cannot be read", run_id)
        else:
            # What is left of it stays as it is: nothing is ever added to a run that has ended.
            if loaded.created:  # else its retention is over
                logger.error("run %s has ended, and its log cannot be read", run_id)
            state = replace(state, step="ended", status=convert(row.status, _Ended))
        work = WorkingSet(run_id, RunPlan(messages=()), Conversation([]))
    work.unique_id = ids.unique_id(row.key, row.salt)
    log = RunLog(loaded.epoch)
    log.taken_over = not same_owner(loaded.epoch, row.epoch)
    log.state = state
    log.next_seq, log.durable = row.next_seq, row.next_seq - 1
    log.due_at = row.due_at
    log.row = Row(row.version, row.due_at, row.started_at, row.ended_at, latest=row.started_at or row.created_at)
    log.stored = StoredState(len(row.state), newer=sum([fact.size for fact in loaded.facts]))
    run = LiveRun(
        row.key, row.workspace, row.thread, log, work, family=row.family, residency=BEHIND if row.queued else PARKED
    )
    return run, row


async def public_id(store: LogReader, key: int) -> str:
    """The id of a run that is not in memory, for the log; unknown if the run cannot be read."""
    try:
        row = await store.run(key)
    except WeftlineError:
        row = None
    return "(unreadable)" if row is None else ids.run_id(row.key, row.salt)


async def _state(store: LogStore, loaded: Loaded) -> State:
    """The folded state: the row's plus newer facts, or folded from the first fact if another fold made it."""
    row = loaded.row
    if not row.state:
        return fold(State(), [(fact.at, decode_fact.decode(fact.head)) for fact in loaded.facts])
    if row.fold == FOLD:
        try:
            state = decode_state(row.state)
        except DecodeError:
            logger.exception("run %s: its stored state cannot be read; folding its log", ids.run_id(row.key, row.salt))
        else:
            return fold(state, [(fact.at, decode_fact.decode(fact.head)) for fact in loaded.facts])
    return fold(State(), [(fact.at, decode_fact.decode(fact.head)) for fact in await store.facts(row.key)])


def _size(loaded: Loaded) -> int:
    """The bytes that a run's plan and conversation are made from."""
    rows = [len(row.body) for row in loaded.conversation]
    return len(loaded.created) + sum(rows) + sum([len(message) for message in loaded.history])


def _content(loaded: Loaded, state: State) -> tuple[RunPlan, Conversation]:
    plan = decode_plan(decode_created(loaded.created).plan)
    stored = loaded.history[: state.history or 0]
    history = [decode_message(message) for message in stored]
    size = input_bytes(plan) + sum([len(message) for message in stored])
    conversation = Conversation([*history, *plan.messages], size=size, result_limit_bytes=plan.model_result_limit_bytes)
    conversation.digests = plan.digests
    conversation.replay(loaded.conversation)
    return plan, conversation
