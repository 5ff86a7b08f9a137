"""Recovery: what a new driver does about work that an earlier one began, and what happens after the process died.

After `kill -9` the next process

1. reads which runs are due at once, and has their rows say that they are on trial (`Recovery.begin`);
2. loads each of them, under a new epoch: the row's state, plus the newer facts folded in (`load_run`);
3. asks `decide` whether there is something to do, and if so gives the run a driver (`Fleet.consider`);
4. has the driver open the run's tools (`RunOpener.open`) and append `adoption`: what the dead process was at is lost;
5. continues as usual: `decide` says what becomes of lost work (`weftline.kernel.lost`).

The rest is about trials. A run that kills the process would take every other run with it, start after start. So every
run is on trial while it is recovered: its row says so before the run is touched, until something that it began has
ended. If the process dies, the runs on trial are suspects. The next start recovers them after all others, in groups of
half the size, one group after another, so that the killer is soon alone.

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

from msgspec import Raw
from msgspec.structs import replace

from weftline.errors import Conflict, NotFound, StoreError, WeftlineError
from weftline.kernel.bodies import ClosedBody, EndedBody, OpenedBody, encode
from weftline.kernel.decide import decide
from weftline.kernel.endings import settled
from weftline.kernel.entries import (
    FORMAT,
    KNOWN_RULES,
    CallClosed,
    CallOpened,
    Effect,
    RunAdopted,
    RunEnded,
)
from weftline.kernel.evolve import evolve
from weftline.kernel.lease import CallUnclaimed
from weftline.kernel.state import New
from weftline.messages import Text
from weftline.runtime.live import Draft, LiveRun
from weftline.runtime.loading import load_run, public_id
from weftline.runtime.step import write_down
from weftline.store.base import DueRun, LogStore
from weftline.store.database import Database
from weftline.store.records import threads

logger = logging.getLogger(__name__)

MAX_RECOVERIES = 3
"""How often a run is tried again without progress: its driver fails, or the process dies with it alone."""
STORE_RETRY_S, MAX_STORE_RETRY_S = 1.0, 10.0
RETRY_S = 0.2
"""After the first failure of a driver; doubled with each further one."""
MAX_DEATHS = 10
MAX_GROUP = 64
TRIAL_S = 3.0
"""How long a run's first trial lasts, unless something that it began ends first."""
MAX_DOUBLINGS = 8
"""Makes the longest trial longer than any model call or tool may take by default."""
PROBE_S = 0.5
"""How often the process writes while it has to survive without a run: what kills at writes has its chances then too."""
_PAGE = 1000


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


class Fleet(Protocol):
    """What recovery needs from the runs in memory."""

    @property
    def stopping(self) -> bool: ...

    def resident(self, key: int) -> LiveRun | None: ...

    async def load(self, key: int) -> LiveRun:
        """Brings a run into memory. Raises `StoreError` if it cannot be read."""
        ...

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
    def __init__(self, store: LogStore, fleet: Fleet, *, max_recoveries: int = MAX_RECOVERIES) -> None:
        self._max_recoveries = max_recoveries
        self.held = store.held
        """Whether no run may be driven yet: the store comes from a backup."""
        self._store = store
        self._fleet = fleet
        self._began_s = asyncio.get_running_loop().time()
        """The last start of the process, or of a run that has not yet proved harmless."""
        self._waiting: dict[int, DueRun] = {}
        """Suspects, not driven before their trial."""
        self._queued = asyncio.Event()
        self._tried: set[int] = set()
        """Runs whose recovery this process has recorded."""
        self._on_trial: set[int] = set()
        self._charges: dict[int, DueRun] = {}
        """Against runs in memory that were suspects when they were loaded, until something they began has ended."""
        self._inherited: set[int] = set()
        """Runs that were loaded with work in flight that an earlier driver had begun."""
        self._noting: set[int] = set()
        """Those of them whose rows are about to say that they are on trial."""
        self._failures: dict[int, int] = {}
        """How often a run's driver raised since something the run began last ended."""
        self._moved = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._trials: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Starts the runs that were under way, and sets the timer for those waiting for a time.

        Returns as soon as it is recorded which runs are on trial; they are loaded in the background. All of them, since
        a workspace with many runs must not keep the runs of others, or the suspects, waiting for its slots.
        """
        store = self._store
        self.held = False
        if store.unclean:
            await store.charge_death()
        fresh: list[int] = []
        newer: list[int] = []
        """Of another version. They cannot do harm here, and would take the blame for others."""
        after = 0
        while rows := await store.under_way(after=after, limit=_PAGE):
            after = rows[-1].key
            for row in rows:
                if row.rules not in KNOWN_RULES or row.format > FORMAT:
                    newer.append(row.key)
                elif row.suspect:
                    self._waiting[row.key] = row
                else:
                    fresh.append(row.key)
        self._tried.update(fresh)
        if store.unclean and fresh:
            await store.begin_trial(fresh)
            self._on_trial.update(fresh)
        if fresh or newer or self._waiting:
            self._trials = self._spawn(self._load_all(fresh, newer))
        self._report(fresh)
        due = await store.next_due(0)
        if due is not None:
            self._fleet.wake_at(due)

    async def _load_all(self, fresh: Sequence[int], newer: Sequence[int]) -> None:
        for key in [*fresh, *newer]:
            await self._recover(key)
        await self._try_suspects(fresh)

    def _report(self, fresh: Sequence[int]) -> None:
        """One line, if there is anything to report."""
        if self._store.unclean:
            logger.warning("the last server did not stop cleanly; %s", self._summary(fresh))
        elif fresh or self._waiting:
            logger.info("%s", self._summary(fresh))

    def _summary(self, fresh: Sequence[int]) -> str:
        last = len(self._waiting)
        count = len(fresh) + last
        line = f"recovering {count} {'run' if count == 1 else 'runs'}"
        if not last:
            return line
        were = "that was" if last == 1 else "that were"
        return f"{line}; {last} {were} being recovered when the process died {'is' if last == 1 else 'are'} tried last"

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

    async def load(self, key: int) -> LiveRun | None:
        """Brings a run into memory, as `load_run` does."""
        loaded = await load_run(self._store, key)
        if loaded is None:
            return None
        run, row = loaded
        self._reset(key)
        if row.suspect:
            self._charges[key] = DueRun(key, row.suspect, row.alone, row.deaths, row.rules, row.format)
        if run.state.in_flight:
            self._inherited.add(key)
        return run

    def _reset(self, key: int) -> None:
        self._charges.pop(key, None)
        self._inherited.discard(key)

    def hold_back(self, run: LiveRun) -> bool:
        """Puts the run on trial before it is driven, if it is a suspect or has work of an earlier process in flight.

        Returns True if the run has to wait for that. It continues by itself, whatever woke it: a client that resumes a
        run, a timer, a promotion. While the store is held, every run waits.
        """
        if self.held:
            return True
        if run.key in self._tried:
            return False
        charges = self._charges.get(run.key)
        if charges is not None:
            if run.key not in self._waiting:
                self._waiting[run.key] = charges
                self._queued.set()
                if self._trials is None or self._trials.done():
                    self._trials = self._spawn(self._try_suspects(()))
            return True
        if run.key in self._inherited:
            if run.key not in self._noting:
                self._noting.add(run.key)
                self._spawn(self._note_late(run.key))
            return True
        return False

    def progressed(self, key: int) -> None:
        """Something that the run began has ended: its row is no longer on trial."""
        self._failures.pop(key, None)
        self._charges.pop(key, None)
        self._clear(key)

    def unloaded(self, key: int) -> None:
        """The run has left memory with nothing to do: it can no longer kill the process."""
        self._reset(key)
        if self._clear(key):
            self._spawn(self._write(self._store.end_trial, [key]))

    def ended(self, key: int) -> None:
        """The end of the run is durable: nobody drives it again."""
        self._tried.discard(key)

    def _clear(self, key: int) -> bool:
        if key not in self._on_trial:
            return False
        self._on_trial.discard(key)
        self._moved.set()
        return True

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

    async def again(self, key: int, error: BaseException) -> None:
        """A driver raised, which should never happen: tries again, and gives the run up after so many times in a row.

        A store that cannot be read is not the run's fault, however long it lasts.
        """
        self._tried.add(key)  # this process has driven it already
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
        """Loads a run and continues it; one that cannot be read is tried again beside the others, not before them."""
        if self._fleet.stopping:
            return
        try:
            run = await self._fleet.load(key)
        except StoreError as error:
            name = await public_id(self._store, key)
            logger.error("run %s cannot be loaded, trying again: %s", name, error.message)
            self._spawn(self._recover_later(key, max(retry_s, STORE_RETRY_S)))
            return
        except NotFound:
            pass  # its first write failed: it never existed
        except Conflict as error:
            logger.warning("run %s is left alone: %s", await public_id(self._store, key), error.message)
        except Exception:  # nothing is wrong with the others
            logger.exception("run %s could not be loaded", await public_id(self._store, key))
        else:
            self._fleet.consider(run)
            return
        if self._clear(key):
            await self._write(self._store.end_trial, [key])

    async def _recover_later(self, key: int, retry_s: float) -> None:
        await asyncio.sleep(retry_s)
        await self._recover(key, retry_s=min(retry_s * 2, MAX_STORE_RETRY_S))

    async def _note_late(self, key: int) -> None:
        """A run comes back that this process did not recover at its start, such as a paused one."""
        try:
            await self._write(self._store.begin_trial, [key])
            self._tried.add(key)
            self._on_trial.add(key)
        finally:
            self._noting.discard(key)
        await self._recover(key)
        await self._wait_out([key], TRIAL_S)

    async def _try_suspects(self, fresh: Sequence[int]) -> None:
        """Tries suspects, those without charges first, once the other runs have had their time."""
        await self._wait_out(fresh, TRIAL_S)
        while self._waiting:
            first = min(self._waiting.values(), key=lambda row: (_control_s(row), -row.suspect, row.key))
            if first.alone >= self._max_recoveries or (first.alone and first.deaths >= MAX_DEATHS):
                self._try_no_more(first.key)
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

    def _group_of(self, first: DueRun) -> list[DueRun]:
        """Half as many as were on trial together last time, all of one kind."""
        size = max(1, min(first.suspect // 2, MAX_GROUP))
        kind = (first.suspect, first.alone, first.deaths)
        alike = [row for row in self._waiting.values() if (row.suspect, row.alone, row.deaths) == kind]
        return sorted(alike, key=lambda row: row.key)[:size]

    async def _try(self, group: list[DueRun]) -> None:
        keys = [row.key for row in group]
        await self._write(self._store.begin_trial, keys)
        self._on_trial.update(keys)
        self._tried.update(keys)
        for key in keys:
            del self._waiting[key]
            await self._recover(key)
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

    def _try_no_more(self, key: int) -> None:
        """Gives up a suspect. If that cannot be written, it comes back here: it is not driven any more."""
        del self._waiting[key]
        self._spawn(self._give_up_from_log(key))  # it may take until the run can be read

    async def _give_up_from_log(self, key: int) -> None:
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
        facts: list[Draft] = []
        state = run.state
        if state.attempt.open:
            lost = write_down(state, run.work, New(settled(state, "abandoned")))
            facts.append(lost)
            state = evolve(state, lost.head, state.now)
        damaged = replace(state, broken=state.broken or "its recovery failed repeatedly")
        facts += [Draft(new.head, plain_body(new)) for new in decide(damaged).append]
        self._fleet.end_by_force(run, facts)


class Note(Protocol):
    async def __call__(self, keys: Sequence[int]) -> None: ...


def _trial_s(row: DueRun) -> float:
    """Twice as long for each death after the trial was over, or despite the run's progress."""
    return TRIAL_S * 2 ** min(row.deaths - row.alone, MAX_DOUBLINGS)


def _control_s(row: DueRun) -> float:
    """How long the process must survive without the run before it is tried again: much longer before the last trial."""
    if not row.alone:
        return 0.0
    return _trial_s(row) * (2 if row.alone == 1 else 20)


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
    """A process that died while it made a fork may have left the fork's thread without it."""
    try:
        for thread in await records.read(threads.marked_branches()):
            await records.write(threads.remove_unused(thread))
    except StoreError as error:
        logger.warning("threads without a fork stay until the next start: %s", error.message)
