"""Recovery: how a run is loaded, what a new driver does about work that an earlier one began, and what happens after
the process died.

After `kill -9` the next process

1. charges the death (`LogStore.charge_death`): the runs that the dead process had on trial become suspects;
2. reads which runs are due, and records in the rows of all but the suspects that they are on trial (`Recovery.begin`);
3. loads each of them, under a new epoch: the row's state, plus the newer facts folded in (`load_run`);
4. asks `decide` whether there is something to do, and if so gives the run a driver (`Dispatcher.consider`);
5. has the driver open the run's tools (`RunOpener.open`) and append `adoption`: what was in progress is lost;
6. continues as usual: `decide` determines what happens to lost work (`weftline.kernel.turns`).

A run is on trial from step 2 until something that it began has ended, or until it has been back at work for a while: a
trial proves nothing before the tools are open and a command has begun. So a run that kills the process at each start is
on trial at each death, and is found like this (`trials.py`). Suspects are recovered after all other runs, in groups of
half the size each time, until one is on trial alone when the process dies, and is charged with that death. After three
such deaths without progress (`MAX_RECOVERIES`), or ten in all, it is given up: its log gets an end, `worker_error`, and
it is not driven again. A death at which no run is on trial counts against those whose trial was over before anything
they began had ended; if there are none, something else kills the process, and all charges are dropped. So kills that
have nothing to do with a run never add up to giving it up.

A driver that raises is a bug, not a death: its run is tried again a few times, and then given up too (`again`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias

from msgspec import DecodeError, Raw, convert
from msgspec.structs import replace

from weftline.errors import Conflict, NotFound, StoreError, WeftlineError
from weftline.kernel.bodies import ClosedBody, EndedBody, OpenedBody, decode_created, decode_message, encode
from weftline.kernel.control import CallUnclaimed
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.decide import decide
from weftline.kernel.endings import settled
from weftline.kernel.entries import (
    KIND,
    CallClosed,
    CallOpened,
    Effect,
    HistoryPinned,
    MessagesEdited,
    RunAdopted,
    RunEnded,
    decode_fact,
)
from weftline.kernel.evolve import evolve, fold
from weftline.kernel.state import FOLD, New, State, decode_state
from weftline.messages import Text
from weftline.plan import RunPlan, decode_plan
from weftline.runtime import ids
from weftline.runtime.conversation import KINDS, Conversation
from weftline.runtime.deploys import left_alone, left_to_newer, unsupported
from weftline.runtime.fleet.holding import RunDispatcher, RunLoader
from weftline.runtime.live import BEHIND, PARKED, Draft, LiveRow, LiveRun, RunLog, StoredState, WorkingSet
from weftline.runtime.model_calls.cutting import input_bytes
from weftline.runtime.model_calls.deltas import streamed_answer
from weftline.runtime.reads.finding import public_id
from weftline.runtime.reads.relatives import parent_in
from weftline.runtime.tasks import TaskSet
from weftline.runtime.trials import STORE_RETRY_S, Trials
from weftline.runtime.writing import write_down
from weftline.store.base import LogStore
from weftline.store.database import Database
from weftline.store.records import thread_files, threads
from weftline.store.rows import DueRun, Item, Loaded, RunRow
from weftline.work.heavy import in_turn

logger = logging.getLogger(__name__)

MAX_RECOVERIES = 3
"""How often a run is tried again without progress: its driver fails, or the process dies with it alone."""
MAX_STORE_RETRY_S = 10.0
RETRY_S = 0.2
"""The wait after the first failure of a driver; doubled with each further one."""
_PAGE = 1000

_PINNED, _EDITED = KIND[HistoryPinned], KIND[MessagesEdited]
_Ended: TypeAlias = Literal["succeeded", "failed", "cancelled"]
_DECODE_ON_LOOP_BYTES = 256 * 1024
"""Takes about a millisecond; more is decoded in a thread."""
_FOLD_ON_LOOP = 200
"""Facts, which takes about as long."""


# How a run is loaded


async def load_run(store: LogStore, key: int) -> tuple[LiveRun, RunRow] | None:
    """Claims a run and loads it, parked; returns it with its row. None for an unknown run.

    Raises:
        Conflict: `unsupported_run`, for a run written by a newer version. It is left alone.
    """
    row = await store.run(key)
    if row is not None and (newer := unsupported(row)):
        raise left_to_newer(newer)  # unclaimed: whoever knows it may be driving it
    loaded = await store.claim(key, kinds=KINDS)
    if loaded is None:
        return None
    row = loaded.row
    run_id = ids.run_id(row.key, row.salt)
    try:
        state = await _state(store, loaded)
        await _read_as_pinned(store, loaded)
        if _size(loaded) <= _DECODE_ON_LOOP_BYTES:
            plan, conversation = _content(loaded, state)
        else:
            plan, conversation = await in_turn(_content, loaded, state)
        work = WorkingSet(run_id, plan, conversation, secrets=loaded.secrets)
        if state.attempt.open:
            work.answering = await streamed_answer(store, key)
    except UNREADABLE:
        state = State(rules=row.rules, version=row.version, created=True, thread=row.thread, broken="it cannot be read")
        if row.ended_at is None:
            logger.exception("run %s: its log cannot be read", run_id)
        else:
            # What is left of it stays unchanged: nothing is ever added to a run that has ended.
            if loaded.created_body:  # otherwise retention has removed it
                logger.error("run %s has ended, and its log cannot be read", run_id)
            state = replace(state, step="ended", status=convert(row.status, _Ended))
        work = WorkingSet(run_id, RunPlan(messages=()), Conversation([]))
    work.unique_id = ids.unique_id(row.key, row.salt)
    log = RunLog(loaded.epoch)
    log.taken_over = loaded.taken_over
    log.state = state
    log.next_seq, log.durable = row.next_seq, row.next_seq - 1
    log.due_at = row.due_at
    log.row = LiveRow(row.version, row.due_at, row.started_at, row.ended_at, latest=row.started_at or row.created_at)
    log.stored = StoredState(len(row.state), newer=sum([fact.size for fact in loaded.facts]))
    run = LiveRun(
        row.key, row.workspace, row.thread, log, work, family=row.family, residency=BEHIND if row.queued else PARKED
    )
    return run, row


async def _read_as_pinned(store: LogStore, loaded: Loaded) -> None:
    """Replaces the thread's messages by what they were when the run began, if they were edited since: the edits are
    among its own facts.
    """
    if loaded.row.thread is None or all(one.kind != _EDITED for one in loaded.conversation):
        return
    for one in loaded.conversation:
        head = decode_fact.decode(one.head) if one.kind == _PINNED else None
        if isinstance(head, HistoryPinned) and head.through is not None:
            found = await store.thread_pinned(loaded.row.thread, through=head.through, revision=head.revision)
            loaded.history = loaded.history if found is None else found
            return


async def _state(store: LogStore, loaded: Loaded) -> State:
    """The folded state: the row's plus newer facts, or rebuilt from the first fact if another fold made it."""
    row = loaded.row
    if not row.state:
        return await _fold(State(), loaded.facts)
    if row.fold == FOLD:
        try:
            state = decode_state(row.state)
        except DecodeError:
            logger.exception("run %s: its stored state cannot be read; folding its log", ids.run_id(row.key, row.salt))
        else:
            return await _fold(state, loaded.facts)
    return await _fold(State(), await store.facts(row.key))


async def _fold(state: State, facts: Sequence[Item]) -> State:
    def folded() -> State:
        return fold(state, [(fact.at, decode_fact.decode(fact.head)) for fact in facts])

    return folded() if len(facts) <= _FOLD_ON_LOOP else await in_turn(folded)


def _size(loaded: Loaded) -> int:
    """The size in bytes of what a run's plan and conversation are built from."""
    rows = [len(row.body) for row in loaded.conversation]
    return len(loaded.created_body) + sum(rows) + sum([len(message) for message in loaded.history])


def _content(loaded: Loaded, state: State) -> tuple[RunPlan, Conversation]:
    plan = decode_plan(decode_created(loaded.created_body).plan, state.limits)
    stored = loaded.history[: state.history or 0]
    history = [decode_message(message) for message in stored]
    size = input_bytes(plan) + sum([len(message) for message in stored])
    conversation = Conversation([*history, *plan.messages], size=size, result_limit_bytes=plan.model_result_limit_bytes)
    conversation.has_history = True
    conversation.keeps_all = state.thread is not None and plan.thread_keeps_all
    conversation.digests = plan.digests
    conversation.replay(loaded.conversation)
    if conversation.kept is not None:
        conversation.kept.forget()  # they are stored
    return plan, conversation


# What a new driver does about work that an earlier one began


def adoption(run: LiveRun, epoch: int) -> list[Draft]:
    """The fact that marks what an earlier driver began as lost, with the effects that its tools declare now."""
    state = run.state
    if not state.in_flight or state.ended:
        return []
    calls = state.batch.calls
    begun = {calls[index].tool for index in state.batch.running}
    toolbox = run.work.toolbox
    effects: dict[str, Effect] = {}
    for name in sorted(begun):
        tool = toolbox.get(name) if toolbox is not None else None
        if tool is not None:
            effects[name] = tool.effect
    return [Draft(RunAdopted(epoch, effects))]


# What happens after the process died


class Recovery:
    def __init__(
        self,
        store: LogStore,
        loader: RunLoader,
        dispatcher: RunDispatcher,
        *,
        wake_at: Callable[[int], None],
        max_recoveries: int = MAX_RECOVERIES,
    ) -> None:
        """`wake_at` sets the timer for runs that wait for a time."""
        self._store = store
        self._loader = loader
        self._dispatcher = dispatcher
        self._wake_at = wake_at
        self._max_recoveries = max_recoveries
        self._failures: dict[int, int] = {}
        """How often a run's driver raised since something the run began last ended."""
        self._tasks = TaskSet("recovering runs")
        self.trials = Trials(
            store,
            self._tasks,
            recover=self._recover,
            give_up=self._give_up_from_log,
            is_getting_ready=self._is_getting_ready,
            max_recoveries=max_recoveries,
        )

    @property
    def held(self) -> bool:
        """True if no run may be driven yet: the store comes from a backup."""
        return self.trials.held

    def stop(self) -> None:
        self._tasks.cancel()

    async def begin(self) -> None:
        """Starts the runs that were active, and sets the timer for those that wait for a time.

        Returns once it is recorded which runs are on trial; they are loaded in the background. All of them are loaded,
        because a workspace with many runs must not keep the runs of others, or the suspects, waiting for its slots.
        """
        store = self._store
        self.trials.held = False
        if store.unclean:
            await store.charge_death()
        fresh: list[int] = []
        suspects: list[DueRun] = []
        newer: list[int] = []
        """Runs that are left to a newer version. They do not run here, so they must not be charged with a death."""
        after = 0
        while rows := await store.due_now(after=after, limit=_PAGE):
            after = rows[-1].key
            for row in rows:
                if unsupported(row) or (parent_in(row.created_head) and await self._is_left(row.key)):
                    newer.append(row.key)
                elif row.trial_size:
                    suspects.append(row)
                else:
                    fresh.append(row.key)
        await self.trials.begin(fresh, suspects)
        if fresh or newer or suspects:
            self.trials.try_after(partial(self._recover_all, [*fresh, *newer]), fresh)
        begun = len(fresh) + len(suspects)
        _report(begun, len(suspects), await store.waiting(), unclean=store.unclean)
        due = await store.next_due(0)
        if due is not None:
            self._wake_at(due)

    async def _is_left(self, key: int) -> bool:
        """Returns True if a child run is left to a newer version, because of a run above it."""
        try:
            row = await self._store.run(key)
            return row is not None and bool(await left_alone(self._store, row))
        except StoreError:
            return False  # it is tried again when it is loaded

    async def _recover_all(self, keys: Sequence[int]) -> None:
        for key in keys:
            await self._recover(key)

    async def load(self, key: int) -> LiveRun | None:
        """Loads a run, as `load_run` does."""
        loaded = await load_run(self._store, key)
        if loaded is None:
            return None
        run, row = loaded
        self.trials.loaded(run, row)
        return run

    def progressed(self, key: int) -> None:
        """Called when something that the run began has ended: its earlier failures no longer count."""
        self._failures.pop(key, None)
        self.trials.progressed(key)

    def _is_getting_ready(self, key: int) -> bool:
        run = self._loader.resident(key)
        return run is not None and run.active and (run.task is None or run.driving.is_getting_ready)

    async def pick_up(self) -> None:
        """Resumes the runs that were dropped from memory while the store refused writes."""
        try:
            after = 0
            while rows := await self._store.due_now(after=after, limit=_PAGE):
                after = rows[-1].key
                for row in rows:
                    if self._loader.resident(row.key) is None and not self.trials.is_waiting(row.key):
                        await self._recover(row.key)
            due = await self._store.next_due(0)
        except StoreError as error:
            logger.error("the due runs cannot be read, trying again: %s", error.message)
            await asyncio.sleep(STORE_RETRY_S)
            if not self._dispatcher.stopping:
                self._tasks.spawn(self.pick_up())
            return
        if due is not None:
            self._wake_at(due)

    async def again(self, key: int, error: BaseException) -> None:
        """Retries a run whose driver raised, which should never happen; gives it up after `max_recoveries` failures in
        a row.

        A store that cannot be read is not the run's fault, however long it lasts.
        """
        self.trials.driven_before(key)
        if isinstance(error, StoreError):
            await asyncio.sleep(STORE_RETRY_S)
        else:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            if failures >= self._max_recoveries:
                del self._failures[key]
                await self._give_up_from_log(key)
                return
            await asyncio.sleep(RETRY_S * 2 ** (failures - 1))
        await self._recover(key)

    async def _recover(self, key: int, *, retry_s: float = 0.0) -> None:
        """Loads a run and continues it. If it cannot be read, it is retried alongside the others, without delaying
        them.
        """
        if self._dispatcher.stopping:
            return
        try:
            run = await self._loader.load(key)
        except StoreError as error:
            name = await public_id(self._store, key)
            logger.error("run %s cannot be loaded, trying again: %s", name, error.message)
            self._tasks.spawn(self._recover_later(key, max(retry_s, STORE_RETRY_S)))
            return
        except NotFound:
            pass  # its first write failed: it never existed
        except Conflict as error:
            logger.warning("run %s is skipped: %s", await public_id(self._store, key), error.message)
        except Exception:  # the others are unaffected
            logger.exception("run %s could not be loaded", await public_id(self._store, key))
        else:
            self._dispatcher.consider(run)
            return
        await self.trials.not_loaded(key)

    async def _recover_later(self, key: int, retry_s: float) -> None:
        await asyncio.sleep(retry_s)
        await self._recover(key, retry_s=min(retry_s * 2, MAX_STORE_RETRY_S))

    async def _give_up_from_log(self, key: int) -> None:
        try:
            run = await self._loader.load_with_retry(key)
        except WeftlineError:
            logger.exception("run %s could not be loaded", await public_id(self._store, key))
        else:
            self._give_up(run)

    def _give_up(self, run: LiveRun) -> None:
        """Ends a run that cannot continue, without reading its content."""
        if run.state.ended:
            return
        logger.error("failing run %s after repeated failures", run.id)
        # The kernel still decides what has to be closed; the texts are generic, since the run's content must not be
        # read.
        facts: list[Draft] = []
        state = run.state
        if state.attempt.open:
            lost = write_down(state, run.work, New(settled(state, "abandoned")))
            facts.append(lost)
            state = evolve(state, lost.head, state.now)
        damaged = replace(state, broken=state.broken or "its recovery failed repeatedly")
        facts += [Draft(new.head, plain_body(new)) for new in decide(damaged).append]
        self._dispatcher.end_by_force(run, facts)


def _report(begun: int, suspects: int, waiting: int, *, unclean: bool) -> None:
    """Logs one line, if there is anything to report."""
    if unclean:
        logger.warning("the last server did not stop cleanly; %s", _summary(begun, suspects, waiting))
    elif begun or waiting:
        logger.info("%s", _summary(begun, suspects, waiting))


def _summary(begun: int, suspects: int, waiting: int) -> str:
    """`begun` counts the suspects, but not the runs that are `waiting`: these are kept, and need nothing."""
    line = f"recovering {_runs(begun)}"
    if suspects:
        were, are = ("that was", "is") if suspects == 1 else ("that were", "are")
        line += f"; {suspects} {were} being recovered when the process died {are} tried last"
    if waiting:
        waits = "waits" if waiting == 1 else "wait"
        line += f"; {_runs(waiting)} {waits} for a person, a client or a time, as before"
    return line


def _runs(count: int) -> str:
    return f"{count} {'run' if count == 1 else 'runs'}"


def plain_body(new: New) -> bytes:
    match new.head:
        case CallOpened() | CallUnclaimed():
            return encode(OpenedBody(Raw(b"{}")))
        case CallClosed():
            return encode(ClosedBody((Text(new.text),)))
        case RunEnded():
            return encode(EndedBody(error="The run could not continue: its recovery failed repeatedly."))
        case _:
            return b""


async def remove_lost_branches(records: Database) -> None:
    """Removes threads that were created for a fork which does not exist, because the process died in between."""
    try:
        for thread in await records.read(threads.marked_branches()):
            await records.write(threads.remove_unused(thread))
    except StoreError as error:
        logger.warning("unused threads of forks could not be removed and stay until the next start: %s", error.message)


async def remove_unnamed_contents(records: Database) -> None:
    """Removes what the process that died was writing of files, or had begun to remove."""
    try:
        for content in await records.read(thread_files.unnamed_contents()):
            while not await records.write(thread_files.remove_chunks(content)):
                pass
    except StoreError as error:
        logger.warning("unfinished files could not be removed and stay until the next start: %s", error.message)
