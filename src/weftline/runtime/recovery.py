"""Recovery: how a run is loaded, what a new driver does about work that an earlier one began, and what happens after
the process died.

After `kill -9` the next process reads the runs that are due at once. It *loads* each (the row's state, plus the newer
facts folded in), *adopts* it (`run.adopted`: what an earlier process had begun is lost), and `decide` does the rest.

A run that kills the process would take every other run with it, start after start. So every run is on trial while it
is recovered: its row says so before the run is touched, until something that it began has ended. If the process dies,
the runs on trial are suspects. The next start recovers them after all others, in groups of half the size, one group
after another, so that the killer is soon alone.

A run is given up when it died alone three times without progress, or was charged with ten deaths, the last one alone,
even though it streamed. Kills that have nothing to do with a run must never add up to that, so there is a control:
before a run that died alone is tried again, the process has to survive without it for longer than the trial lasts, with
all others that it might be mistaken for, and writing as a run would. If the process dies during that time, or when no
run is on trial, something else killed it, and all charges are dropped. A run that kills only after its trial is over is
charged too, and its next trial is twice as long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

from msgspec import DecodeError, Raw, ValidationError
from msgspec.structs import replace

from weftline.errors import Conflict, StoreError, WeftlineError
from weftline.kernel.bodies import ClosedBody, EndedBody, FailedBody, OpenedBody, decode_created, decode_message, encode
from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    FACTS,
    KNOWN_RULES,
    AttemptFailed,
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
from weftline.store.base import Loaded, LogReader, LogStore, RunRow, Stored, UnderWay

logger = logging.getLogger(__name__)

MAX_DRIVER_FAILURES = 3
STORE_RETRY_S = 1.0
MAX_DEATHS_WITHOUT_PROGRESS = 3
MAX_DEATHS = 10
MAX_GROUP = 64
TRIAL_S = 3.0
"""How long a run's first trial lasts, unless something that it began ends first."""
MAX_DOUBLINGS = 8
"""Makes the longest trial longer than any model call or tool may take by default."""
PROBE_S = 0.5
"""How often the process writes while it has to survive without a run: what kills at writes has its chances then too."""
_PAGE = 1000
_DECODED_HERE_BYTES = 256 * 1024
"""About a millisecond; more is decoded in a thread."""


# How a run is loaded


async def load_run(store: LogStore, key: int) -> LiveRun | None:
    """Claims a run and brings it into memory, parked. None for an unknown run.

    Raises:
        Conflict: `unsupported_run`, for a run written by a newer version. It is left alone.
    """
    loaded = await store.claim(key, kinds=KINDS)
    if loaded is None:
        return None
    row = loaded.row
    run_id = ids.run_id(row.key, row.salt)
    try:
        state = await _state(store, loaded)
        if _size(loaded) <= _DECODED_HERE_BYTES:
            plan, conversation = _content(loaded, state)
        else:
            plan, conversation = await asyncio.to_thread(_content, loaded, state)
        work = WorkingSet(run_id, plan, conversation, secrets=loaded.secrets)
    except _Unknown as error:
        store.release(key, loaded.epoch)
        raise Conflict(
            f"This run was written by a newer version of Weftline ({error}).", code="unsupported_run"
        ) from None
    except DecodeError:
        logger.exception("run %s: its log cannot be read", run_id)
        state = State(rules=row.rules, version=row.version, created=True, thread=row.thread, broken="it cannot be read")
        work = WorkingSet(run_id, RunPlan(messages=()), Conversation(()))
    log = RunLog(loaded.epoch)
    log.state, log.state_size = state, len(row.state)
    log.next_seq, log.durable = row.next_seq, row.next_seq - 1
    log.row_version, log.row_due, log.due_at = row.version, row.due_at, row.due_at
    log.started_at, log.ended_at = row.started_at, row.ended_at
    run = LiveRun(row.key, row.salt, workspace=row.workspace, thread=row.thread, log=log, work=work)
    run.residency = Residency.BEHIND if row.queued else Residency.PARKED
    run.charges = UnderWay(key, row.suspect, row.alone, row.deaths) if row.suspect else None
    run.inherited = state.in_flight
    return run


async def public_id(store: LogReader, key: int) -> str:
    """The id of a run that is not in memory, for the log; unknown if the run cannot be read."""
    try:
        row = await store.run(key)
    except WeftlineError:
        row = None
    return "(unreadable)" if row is None else ids.run_id(row.key, row.salt)


class _Unknown(Exception):
    """Something that only a newer version understands."""


async def unsupported(store: LogReader, row: RunRow) -> str:
    """Why this version must leave an unfinished run alone: the feature that only a newer one knows; "" if none."""
    try:
        _check_rules(row)
        facts = await store.facts(row.key)
        for fact in facts:
            _fact(fact)
        if facts:
            _plan(facts[0].body)
    except _Unknown as error:
        return str(error)
    except DecodeError:
        pass  # damaged, which is another matter
    return ""


def _check_rules(row: RunRow) -> None:
    if row.rules not in KNOWN_RULES:
        raise _Unknown(f"rules {row.rules}")


async def _state(store: LogStore, loaded: Loaded) -> State:
    """The folded state: the row's plus newer facts, or folded from the first fact if another fold made it."""
    row = loaded.row
    _check_rules(row)
    if row.fold == FOLD:
        try:
            state = decode_state(row.state)
        except DecodeError:
            logger.exception("run %s: its stored state cannot be read; folding its log", ids.run_id(row.key, row.salt))
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


def _size(loaded: Loaded) -> int:
    """The bytes that a run's plan and conversation are made from."""
    rows = [len(row.body) for row in loaded.conversation]
    return len(loaded.created) + sum(rows) + sum([len(message) for message in loaded.history])


def _content(loaded: Loaded, state: State) -> tuple[RunPlan, Conversation]:
    plan = _plan(loaded.created)
    stored = loaded.history[: state.history or 0]
    history = [decode_message(message) for message in stored]
    size = len(loaded.created) + sum([len(message) for message in stored])
    conversation = Conversation([*history, *plan.messages], size=size)
    conversation.replay(loaded.conversation)
    return plan, conversation


def _plan(created: bytes) -> RunPlan:
    try:
        return decode_plan(bytes(decode_created(created).plan))
    except UnknownPlan as error:
        raise _Unknown(str(error)) from None


# What a new driver does about work that an earlier one began


def adoption(run: LiveRun, epoch: int) -> list[Draft]:
    """The fact that marks what an earlier driver began as lost, with the effects that its tools declare now."""
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
    """What recovery needs from the runs in memory."""

    @property
    def stopping(self) -> bool: ...

    def resident(self, key: int) -> LiveRun | None: ...

    async def load_surely(self, key: int) -> LiveRun:
        """Brings a run into memory, as soon as the store can be read."""
        ...

    def consider(self, run: LiveRun) -> None:
        """Schedules the run if there is something to do."""
        ...

    def end_by_force(self, run: LiveRun, facts: Sequence[Draft]) -> None:
        """Ends a run without its driver. The last fact is the terminal one."""
        ...

    def wake_at(self, due_at: int) -> None: ...


class Recovery:
    def __init__(self, store: LogStore, fleet: Fleet) -> None:
        self.held = store.held
        """Whether no run may be driven yet: the store comes from a backup."""
        self._store = store
        self._fleet = fleet
        self._began_s = asyncio.get_running_loop().time()
        """The last start of the process, or of a run that has not yet proved harmless."""
        self._waiting: dict[int, UnderWay] = {}
        """Suspects, not driven before their trial."""
        self._queued = asyncio.Event()
        self._tried: set[int] = set()
        """Runs whose recovery this process has recorded."""
        self._on_trial: set[int] = set()
        self._moved = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._trials: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Starts the runs that were under way, and sets the timer for those waiting for a time."""
        store = self._store
        self.held = False
        if store.unclean:
            await store.charge_death()
        fresh: list[int] = []
        after = 0
        while rows := await store.under_way(after=after, limit=_PAGE):
            after = rows[-1].key
            self._waiting.update([(row.key, row) for row in rows if row.suspect])
            fresh += [row.key for row in rows if not row.suspect]
        self._tried.update(fresh)
        if store.unclean and fresh:
            await store.begin_trial(fresh)
            self._on_trial.update(fresh)
        for key in fresh:
            await self._recover(key)
        if self._on_trial or self._waiting:
            self._trials = self._spawn(self._hold_trials(fresh))
        self._report(fresh)
        due = await store.next_due(0)
        if due is not None:
            self._fleet.wake_at(due)

    def _report(self, fresh: Sequence[int]) -> None:
        """One line, if there is anything to report."""
        if self._store.unclean:
            logger.warning(
                "the last server did not stop cleanly; runs carried on (on trial): %d, suspects waiting for trial: %d",
                len(fresh),
                len(self._waiting),
            )
        elif fresh or self._waiting:
            logger.info("runs carried on: %d, suspects waiting for trial: %d", len(fresh), len(self._waiting))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("recovering runs failed", exc_info=error)

    def holds(self, run: LiveRun) -> bool:
        """Whether the run has to wait: a suspect, or work of an earlier process, is not driven before its trial is
        recorded.

        It continues as soon as that is done, whatever woke it: a client that resumes a run, a timer, a promotion.
        """
        if self.held:
            return True
        if run.key in self._tried:
            return False
        if run.charges is not None:
            if run.key not in self._waiting:
                self._waiting[run.key] = run.charges
                self._queued.set()
                if self._trials is None or self._trials.done():
                    self._trials = self._spawn(self._hold_trials(()))
            return True
        if run.inherited:
            self._tried.add(run.key)
            self._spawn(self._note_late(run.key))
            return True
        return False

    def cleared(self, key: int) -> None:
        """Something that the run began has ended, or it has left memory: it did not kill the process."""
        if key in self._on_trial:
            self._on_trial.discard(key)
            self._moved.set()

    async def pick_up(self) -> None:
        """Resumes the runs that were dropped from memory while the store refused writes."""
        try:
            after = 0
            while rows := await self._store.under_way(after=after, limit=_PAGE):
                after = rows[-1].key
                for row in rows:
                    if self._fleet.resident(row.key) is None and row.key not in self._waiting:
                        await self._recover(row.key)
            due = await self._store.next_due(0)
        except StoreError as error:
            logger.error("the due runs cannot be read, trying again: %s", error.message)
            await asyncio.sleep(STORE_RETRY_S)
            if not self._fleet.stopping:
                self._spawn(self.pick_up())
            return
        if due is not None:
            self._fleet.wake_at(due)

    async def again(self, run: LiveRun, error: BaseException) -> None:
        """A driver raised, which should never happen: tries again, and gives the run up after the third time in a row.

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
            run = await self._fleet.load_surely(key)
        except Conflict as error:
            logger.warning("run %s is left alone: %s", await public_id(self._store, key), error.message)
        except WeftlineError:
            logger.exception("run %s could not be loaded", await public_id(self._store, key))
        else:
            self._fleet.consider(run)

    async def _note_late(self, key: int) -> None:
        """A run comes back that this process did not recover at its start, such as a paused one."""
        await self._write(self._store.begin_trial, [key])
        self._on_trial.add(key)
        await self._recover(key)
        await self._wait_out([key], TRIAL_S)

    async def _hold_trials(self, fresh: Sequence[int]) -> None:
        """Tries suspects, those without charges first, once the other runs have had their time."""
        await self._wait_out(fresh, TRIAL_S)
        while self._waiting:
            first = min(self._waiting.values(), key=lambda row: (_control_s(row), -row.suspect, row.key))
            if first.alone >= MAX_DEATHS_WITHOUT_PROGRESS or (first.alone and first.deaths >= MAX_DEATHS):
                await self._try_no_more(first.key)
                continue
            too_early_s = self._began_s + _control_s(first) - asyncio.get_running_loop().time()
            if too_early_s > 0:
                self._queued.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(too_early_s, PROBE_S)):
                        await self._queued.wait()  # by a run that may be tried earlier
                with suppress(StoreError):
                    await self._store.probe()
                continue
            await self._try(self._group_of(first))

    def _group_of(self, first: UnderWay) -> list[UnderWay]:
        """Half as many as were on trial together last time, all of one kind."""
        size = max(1, min(first.suspect // 2, MAX_GROUP))
        kind = (first.suspect, first.alone, first.deaths)
        alike = [row for row in self._waiting.values() if (row.suspect, row.alone, row.deaths) == kind]
        return sorted(alike, key=lambda row: row.key)[:size]

    async def _try(self, group: list[UnderWay]) -> None:
        keys = [row.key for row in group]
        await self._write(self._store.begin_trial, keys)
        self._on_trial.update(keys)
        self._tried.update(keys)
        for key in keys:
            del self._waiting[key]
            await self._recover(key)
            if self._fleet.resident(key) is None:
                self.cleared(key)
        await self._wait_out(keys, max(_trial_s(row) for row in group))

    async def _wait_out(self, keys: Sequence[int], trial_s: float) -> None:
        """Returns when something that each of these runs began has ended, or their trial is over."""
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(trial_s):
                while not self._on_trial.isdisjoint(keys):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            late = [key for key in keys if key in self._on_trial]
            self._on_trial.difference_update(late)
            self._began_s = max(self._began_s, began_s)
            await self._write(self._store.survived, late)

    async def _try_no_more(self, key: int) -> None:
        """Gives up a suspect. If that cannot be written, it comes back here: it is not driven any more."""
        del self._waiting[key]
        try:
            run = await self._fleet.load_surely(key)
        except WeftlineError:
            logger.exception("run %s could not be loaded", await public_id(self._store, key))
        else:
            self._give_up(run)

    async def _write(self, note: Note, keys: list[int]) -> None:
        """The store may refuse; suspects then wait like everyone else."""
        while True:
            try:
                await note(keys)
                return
            except StoreError:
                await asyncio.sleep(STORE_RETRY_S)

    def _give_up(self, run: LiveRun) -> None:
        """Ends a run that cannot continue, without reading its content."""
        if run.state.ended:
            return
        logger.error("giving up run %s after repeated failures", run.id)
        # The kernel still says what has to be closed; the texts are generic, since the run's content must not be read.
        damaged = replace(run.state, broken=run.state.broken or "its recovery failed repeatedly")
        self._fleet.end_by_force(run, [Draft(new.head, _plain_body(new)) for new in decide(damaged).append])


class Note(Protocol):
    async def __call__(self, keys: Sequence[int]) -> None: ...


def _trial_s(row: UnderWay) -> float:
    """Twice as long for each death after the trial was over, or despite the run's progress."""
    return TRIAL_S * 2 ** min(row.deaths - row.alone, MAX_DOUBLINGS)


def _control_s(row: UnderWay) -> float:
    """How long the process must survive without the run before it is tried again: much longer before the last trial."""
    if not row.alone:
        return 0.0
    return _trial_s(row) * (2 if row.alone == 1 else 20)


def _plain_body(new: New) -> bytes:
    match new.head:
        case CallOpened():
            return encode(OpenedBody(Raw(b"{}")))
        case CallClosed():
            return encode(ClosedBody((Text(new.text),)))
        case AttemptFailed():
            return encode(FailedBody(new.head.reason))
        case RunEnded():
            return encode(EndedBody(error="The run could not continue: its recovery failed repeatedly."))
        case _:
            return b""
