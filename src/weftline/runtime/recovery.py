"""Carrying on: how a run comes into memory, what a new driver makes of what an earlier one had begun, and what happens
after the process died.

After `kill -9` the next process reads the runs that are due at once. It *loads* each (the row's state, folded with the
facts that are newer), *adopts* it (`run.adopted`: what an earlier process had begun is lost), and `decide` says the
rest.

A run that kills the process would take every other run with it, start after start. So every run is on trial while it
is recovered: its row says so before anything of it is touched, and says no more once it has made progress. If the
process dies, those that were on trial are suspects: the next start recovers them after all others, in groups of half
as many, so that the one that kills is soon alone. Only a death while it was alone counts against a run, and a death
while nobody was on trial is taken as proof that something else kills the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from msgspec import DecodeError, Raw, ValidationError
from msgspec.structs import replace

from weftline.errors import Conflict, StoreError, WeftlineError
from weftline.kernel.bodies import ClosedBody, EndedBody, OpenedBody, decode_created, decode_message, encode
from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    FACTS,
    KNOWN_RULES,
    CallClosed,
    CallOpened,
    Effect,
    Fact,
    RunAdopted,
    RunEnded,
    decode_fact,
)
from weftline.kernel.evolve import fold
from weftline.kernel.state import FOLD, New, State, decode_state
from weftline.messages import Text
from weftline.plan import RunPlan, UnknownPlan, decode_plan
from weftline.runtime import ids
from weftline.runtime.conversation import KINDS, Conversation
from weftline.runtime.live import Draft, LiveRun, Residency, RunLog, WorkingSet
from weftline.store.base import Loaded, LogStore, Stored, UnderWay

logger = logging.getLogger(__name__)

MAX_DRIVER_FAILURES = 3
STORE_RETRY_S = 1.0
MAX_DEATHS_WITHOUT_PROGRESS = 3
MAX_DEATHS = 10
MAX_GROUP = 64
PASS_S = 3.0
"""How long a group of suspects must have survived before the next one is recovered too."""
QUIET_S = 3.0
"""How long a process must live without a run that is charged with a death before that run is tried again."""
_PAGE = 1000


# How a run comes into memory


async def load_run(store: LogStore, key: int) -> LiveRun | None:
    """Claims a run and brings it into memory, parked. None for an unknown run.

    Raises:
        Conflict: `unsupported_run`, for a run that a newer version has written. It is left alone.
    """
    loaded = await store.claim(key, kinds=KINDS)
    if loaded is None:
        return None
    row = loaded.row
    run_id = ids.run_id(row.key, row.salt)
    try:
        state = await _state(store, loaded)
        work = WorkingSet(run_id, *_content(loaded, state), secrets=loaded.secrets)
    except _Unknown as error:
        store.release(key, loaded.epoch)
        raise Conflict(
            f"This run was written by a newer version of Weftline ({error}).", code="unsupported_run"
        ) from None
    except DecodeError:
        logger.exception("run %s: its log does not read", run_id)
        state = State(rules=row.rules, version=row.version, created=True, thread=row.thread, broken="it does not read")
        work = WorkingSet(run_id, RunPlan(messages=()), Conversation(()))
    log = RunLog(loaded.epoch)
    log.state, log.state_size = state, len(row.state)
    log.next_seq, log.durable = row.next_seq, row.next_seq - 1
    log.row_version, log.row_due, log.due_at = row.version, row.due_at, row.due_at
    log.started_at, log.ended_at = row.started_at, row.ended_at
    run = LiveRun(row.key, row.salt, workspace=row.workspace, thread=row.thread, log=log, work=work)
    run.residency = Residency.BEHIND if row.queued else Residency.PARKED
    return run


class _Unknown(Exception):
    """Something that only a newer version knows."""


async def _state(store: LogStore, loaded: Loaded) -> State:
    """The folded state: the row's, with the facts that are newer; from the first fact on when another fold made it."""
    row = loaded.row
    if row.rules not in KNOWN_RULES:
        raise _Unknown(f"rules {row.rules}")
    if row.fold == FOLD:
        try:
            state = decode_state(row.state)
        except DecodeError:
            logger.exception("run %s: its stored state does not read; folding its log", ids.run_id(row.key, row.salt))
        else:
            return fold(state, [(fact.at, _fact(fact)) for fact in loaded.facts])
    return fold(State(), [(fact.at, _fact(fact)) for fact in await store.facts(row.key)])


def _fact(stored: Stored) -> Fact:
    if stored.kind not in FACTS:
        raise _Unknown(f"entry {stored.kind}")
    try:
        return decode_fact.decode(stored.head)
    except ValidationError as error:
        if "unknown field" in str(error):
            raise _Unknown(f"entry {stored.kind}") from None
        raise


def _content(loaded: Loaded, state: State) -> tuple[RunPlan, Conversation]:
    try:
        plan = decode_plan(bytes(decode_created(loaded.created).plan))
    except UnknownPlan as error:
        raise _Unknown(str(error)) from None
    history = [decode_message(message) for message in loaded.history[: state.history or 0]]
    conversation = Conversation([*history, *plan.messages])
    conversation.replay(loaded.conversation)
    return plan, conversation


# What a new driver makes of what an earlier one had begun


def adoption(run: LiveRun, epoch: int) -> list[Draft]:
    """The fact that marks what an earlier driver had begun as lost, with the effects that its tools declare today."""
    state = run.state
    if not state.in_flight or state.ended:
        return []
    calls = state.batch.calls
    begun = {calls[index].name for index in state.batch.running}
    toolbox = run.work.toolbox
    effects: dict[str, Effect] = {}
    for name in sorted(begun):
        tool = toolbox.get(name) if toolbox is not None else None
        if tool is not None:
            effects[name] = tool.effect
    return [Draft(RunAdopted(epoch, effects))]


# What happens after the process died


class Fleet(Protocol):
    """The runs in memory, as recovery needs them."""

    @property
    def stopping(self) -> bool: ...

    def resident(self, key: int) -> LiveRun | None: ...

    async def load(self, key: int) -> LiveRun: ...

    def consider(self, run: LiveRun) -> None:
        """Has the run driven if there is something to do."""
        ...

    def end_by_force(self, run: LiveRun, facts: Sequence[Draft]) -> None:
        """Ends a run without its driver. The last fact is the terminal one."""
        ...

    def wake_at(self, due_at: int) -> None: ...


class Recovery:
    def __init__(self, store: LogStore, fleet: Fleet) -> None:
        self._store = store
        self._fleet = fleet
        self._held: set[int] = set()
        self._on_trial: set[int] = set()
        self._moved = asyncio.Event()
        self._trials: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Starts the runs that were under way, and arms the timer for those that wait for a time."""
        store = self._store
        if store.unclean:
            await store.charge_death()
        suspects: list[UnderWay] = []
        after = 0
        while rows := await store.under_way(after=after, limit=_PAGE):
            after = rows[-1].key
            found = [row for row in rows if row.suspect]
            self._held.update([row.key for row in found])
            suspects += found
            fresh = [row.key for row in rows if not row.suspect]
            if store.unclean and fresh:
                await store.begin_trial(fresh)
            for key in fresh:
                await self._recover(key)
        if suspects:
            self._trials = asyncio.create_task(self._try_in_groups(suspects))
        due = await store.next_due(0)
        if due is not None:
            self._fleet.wake_at(due)

    def stop(self) -> None:
        if self._trials is not None:
            self._trials.cancel()

    def holds(self, key: int) -> bool:
        """Whether the run is a suspect that waits for its trial: nobody drives it before, whoever asks."""
        return key in self._held

    def progressed(self, key: int) -> None:
        """The run has shown that it does not kill the process, or has left memory."""
        if key in self._on_trial:
            self._on_trial.discard(key)
            self._moved.set()

    async def pick_up(self) -> None:
        """Carries on the runs that were dropped from memory while the store refused writes."""
        after = 0
        while rows := await self._store.under_way(after=after, limit=_PAGE):
            after = rows[-1].key
            for row in rows:
                if self._fleet.resident(row.key) is None and row.key not in self._held:
                    await self._recover(row.key)
        due = await self._store.next_due(0)
        if due is not None:
            self._fleet.wake_at(due)

    async def again(self, run: LiveRun, error: BaseException) -> None:
        """A driver raised, which it never should: tries again, and gives the run up after the third time in a row.

        A store that cannot be read is not the run's fault, however long it lasts.
        """
        if run.state.ended or run.gone:
            return
        if isinstance(error, StoreError):
            await asyncio.sleep(STORE_RETRY_S)
        else:
            run.failures += 1
            if run.failures >= MAX_DRIVER_FAILURES:
                self._give_up(run)
                return
            await asyncio.sleep(0.1 * 2**run.failures)
        if not self._fleet.stopping and not run.gone:
            self._fleet.consider(run)

    async def _recover(self, key: int) -> None:
        if self._fleet.stopping:
            return
        try:
            run = await self._fleet.load(key)
        except Conflict as error:
            logger.warning("run %d is left alone: %s", key, error.message)
        except WeftlineError:
            logger.exception("run %d could not be loaded", key)
        else:
            self._fleet.consider(run)

    async def _try_in_groups(self, suspects: list[UnderWay]) -> None:
        """Tries suspects in groups of half as many as the last time, those that are charged with deaths last."""
        suspects.sort(key=lambda row: (row.alone, -row.suspect, row.key))
        while suspects:
            first = suspects[0]
            size = max(1, min(first.suspect // 2, MAX_GROUP))
            alike = [row for row in suspects[:size] if (row.alone, row.suspect) == (first.alone, first.suspect)]
            suspects = suspects[len(alike) :]
            if first.alone >= MAX_DEATHS_WITHOUT_PROGRESS or first.deaths >= MAX_DEATHS:
                await self._try_no_more(first.key)
                suspects = [*alike[1:], *suspects]
                continue
            if first.alone:
                await asyncio.sleep(QUIET_S * 2 ** (first.alone - 1))
            await self._try([row.key for row in alike])

    async def _try(self, keys: list[int]) -> None:
        await self._write(self._store.begin_trial, keys)
        self._on_trial.update(keys)
        self._held.difference_update(keys)
        for key in keys:
            await self._recover(key)
            if self._fleet.resident(key) is None:
                self.progressed(key)
        try:
            async with asyncio.timeout(PASS_S):
                while not self._on_trial.isdisjoint(keys):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            late = [key for key in keys if key in self._on_trial]
            self._on_trial.difference_update(late)
            await self._write(self._store.survived, late)

    async def _try_no_more(self, key: int) -> None:
        self._held.discard(key)
        try:
            run = await self._fleet.load(key)
        except WeftlineError:
            logger.exception("run %d could not be loaded", key)
        else:
            self._give_up(run)

    async def _write(self, note: Note, keys: list[int]) -> None:
        """The store may refuse; suspects then wait as everybody does."""
        while True:
            try:
                await note(keys)
                return
            except StoreError:
                await asyncio.sleep(STORE_RETRY_S)

    def _give_up(self, run: LiveRun) -> None:
        """Ends a run that cannot be carried on, without asking anything of its own content."""
        if run.state.ended:
            return
        logger.error("run %s is given up after repeated failures", run.id)
        # The kernel still says what has to be closed; the words are plain, since the run's content is not to be read.
        damaged = replace(run.state, broken=run.state.broken or "its recovery failed repeatedly")
        self._fleet.end_by_force(run, [Draft(new.head, _plain_body(new)) for new in decide(damaged).append])


class Note(Protocol):
    async def __call__(self, keys: Sequence[int]) -> None: ...


def _plain_body(new: New) -> bytes:
    match new.head:
        case CallOpened():
            return encode(OpenedBody(Raw(b"{}")))
        case CallClosed():
            return encode(ClosedBody((Text(new.text),)))
        case RunEnded():
            return encode(EndedBody(error="The run could not be carried on: its recovery failed repeatedly."))
        case _:
            return b""
