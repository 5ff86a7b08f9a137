"""Who holds a run: the runs in memory, how they come and go, and how many of them a workspace may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from weftline.runtime import ids
from weftline.runtime.budgets.ledger import Account, Ledger
from weftline.runtime.hub import Hub
from weftline.runtime.live import BEHIND, GONE, Draft, LiveRun
from weftline.store.base import LogStore
from weftline.work.threads import THREADS_PER_WORKSPACE


class RunLoader(Protocol):
    def resident(self, key: int) -> LiveRun | None:
        """The run, if it is in memory."""
        ...

    async def load(self, key: int) -> LiveRun:
        """The run in memory; a parked one is read from the store.

        Raises `NotFound`, `Conflict` for a newer run, and `StoreError` if it cannot be read.
        """
        ...

    async def load_with_retry(self, key: int) -> LiveRun:
        """Like `load`, for callers that will not retry: waits until the store can be read."""
        ...


class RunDispatcher(Protocol):
    @property
    def stopping(self) -> bool: ...

    @property
    def halted(self) -> bool:
        """True if nothing may run: the server is stopping, or its store is held."""
        ...

    def consider(self, run: LiveRun) -> None:
        """Called after an append to a run: ends it here, wakes its driver, or schedules it."""
        ...

    def take(self, run: LiveRun, fact: Draft) -> None:
        """Appends a fact from another run, if the run still accepts it, and continues the run."""
        ...

    def fire(self, run: LiveRun, now: int) -> None:
        """Appends the current time to the run."""
        ...

    def move_up(self, run: LiveRun) -> None:
        """Called when no earlier run of its thread is left."""
        ...

    def end_by_force(self, run: LiveRun, facts: Sequence[Draft]) -> None:
        """Ends a run without its driver. The last fact is the terminal one."""
        ...


_FILES_PER_WORKSPACE = 8
"""A workspace's runs may use one in this many file descriptors; each run has at most one model call open."""
_MIN_RUNS = 64


class WorkspaceLimits(Struct, frozen=True, kw_only=True):
    """The fields are server settings; see `docs/settings.md`."""

    max_runs_per_workspace: int = 2048
    """Runs that are driven at once; the rest are queued. A run that waits for a client or a person does not count."""
    max_queued_runs_per_workspace: int = 20_000
    """Runs waiting for a slot, or for earlier runs of their session."""
    max_streams_per_workspace: int = 4000
    """Event streams open at once."""
    max_tool_threads_per_workspace: int = THREADS_PER_WORKSPACE
    """Threads for blocking tools at once; further calls wait."""

    def within_files(self, max_files: int | None) -> WorkspaceLimits:
        """These limits for a process that may open `max_files` descriptors; further runs are queued.

        Otherwise the hanging model calls of one workspace would leave no descriptor for accepting a connection.
        """
        if max_files is None:
            return self
        share = max(_MIN_RUNS, max_files // _FILES_PER_WORKSPACE)
        return replace(self, max_runs_per_workspace=min(self.max_runs_per_workspace, share))


class BehindRuns:
    def __init__(self) -> None:
        self._keys: dict[int, set[int]] = {}

    def found(self, stored: Iterable[tuple[int, int]]) -> None:
        """Adds the queued runs that an earlier process left, by key, each with its workspace."""
        for key, workspace in stored:
            self._keys.setdefault(workspace, set()).add(key)

    def add(self, run: LiveRun) -> None:
        self._keys.setdefault(run.workspace, set()).add(run.key)

    def drop(self, run: LiveRun) -> None:
        """Called when the run has moved up, has ended, or was never written."""
        keys = self._keys.get(run.workspace)
        if keys is not None and run.key in keys:
            keys.remove(run.key)
            if not keys:
                del self._keys[run.workspace]

    @property
    def total(self) -> int:
        return sum(map(len, self._keys.values()))

    def count(self, workspace: int) -> int:
        return len(self._keys.get(workspace, ()))


KEEP_S = 5.0
"""How long a parked run stays in memory."""
MAX_RETAINED = 512
_SWEEP_S = 0.1
"""The minimum interval between sweeps: the remaining wait may round to zero."""


class IdleRuns:
    def __init__(self, unload: Callable[[LiveRun], None]) -> None:
        """`unload` gets a run that has been parked for a while and has nothing waiting to be written."""
        self._unload = unload
        self._loop = asyncio.get_running_loop()
        self._runs: dict[int, LiveRun] = {}
        """Longest parked first."""
        self._busy: dict[int, LiveRun] = {}
        """Those that could not be unloaded at the latest sweep. They do not count: others would have to leave for them,
        and come back for nothing.
        """
        self._timer: asyncio.TimerHandle | None = None
        self._sweeping_soon = False

    def keep(self, run: LiveRun) -> None:
        self.drop(run)
        self._add(run)
        self.sweep_if_full()
        if self._timer is None:
            self._timer = self._loop.call_later(KEEP_S, self._sweep)

    def drop(self, run: LiveRun) -> None:
        """Called when the run is active again, or gone."""
        self._runs.pop(run.key, None)
        self._busy.pop(run.key, None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def sweep_if_full(self) -> None:
        if len(self._runs) > MAX_RETAINED and not self._sweeping_soon:
            # Not right here: a commit may be only partly announced, and its runs are not idle before that.
            self._sweeping_soon = True
            self._loop.call_soon(self._sweep_soon)

    def _add(self, run: LiveRun) -> None:
        run.touched_s = self._loop.time()
        self._runs[run.key] = run

    def _sweep_soon(self) -> None:
        self._sweeping_soon = False
        self._sweep()

    def _sweep(self) -> None:
        """Releases runs that have been parked for a while, and the oldest if there are too many."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for run in [run for run in self._busy.values() if not _is_busy(run)]:
            del self._busy[run.key]
            self._add(run)
        for run in [run for run in self._runs.values() if _is_busy(run)]:
            self._busy[run.key] = self._runs.pop(run.key)
        now = self._loop.time()
        # Some more than necessary, as a sweep looks at all of them.
        most = MAX_RETAINED if len(self._runs) <= MAX_RETAINED else MAX_RETAINED - MAX_RETAINED // 8
        for run in list(self._runs.values()):
            if len(self._runs) <= most and run.touched_s > now - KEEP_S:
                break
            self._runs.pop(run.key, None)
            self._unload(run)
        if self._timer is None and (self._runs or self._busy):
            oldest_s = next((run.touched_s for run in self._runs.values()), now)
            self._timer = self._loop.call_later(max(oldest_s + KEEP_S - now, _SWEEP_S), self._sweep)


def _is_busy(run: LiveRun) -> bool:
    """Returns True if the run has something waiting to be written, or its tools are being opened: whoever answers it
    needs them, and would open them again and again.
    """
    return not run.log.outbox.empty or run.driving.is_opening


class Residents:
    def __init__(self, store: LogStore, *, hub: Hub, ledger: Ledger, on_idle: Callable[[LiveRun], None]) -> None:
        """`on_idle` is called with a run that has been parked for a while."""
        self._store = store
        self._hub = hub
        self._ledger = ledger
        self.runs: dict[int, LiveRun] = {}
        self.kept = IdleRuns(on_idle)
        self.behind = BehindRuns()
        self.leaving: dict[int, LiveRun] = {}
        """Runs that start over, until their drivers have left and everything pending has been written."""

    def add(self, run: LiveRun) -> None:
        """Adds a run that was created or loaded."""
        self.runs[run.key] = run
        run.work.account = Account(
            self._ledger,
            key=run.key,
            workspace=run.workspace,
            thread=run.thread,
            plan=run.work.plan,
            parent=run.state.parent,
        )
        if run.residency is BEHIND:
            self.behind.add(run)

    def has_children_of(self, run: LiveRun) -> bool:
        return any(ids.key_of(child) in self.runs for child in run.state.open_children)

    def unload(self, run: LiveRun) -> None:
        """Removes a run from memory; it can be loaded again."""
        state = run.log.state
        if run.thread is not None and (state.ended or run.residency is not BEHIND):
            self.behind.drop(run)
        run.move(GONE)
        self.kept.drop(run)
        release_code(run)
        if state.parent is not None:
            parent = self.runs.get(ids.parent_key(state.parent))
            if parent is not None and not parent.active:
                self.kept.keep(parent)
        if self.runs.get(run.key) is run:
            del self.runs[run.key]
            self._store.release(run.key, run.log.epoch)
            if not state.ended:
                self._hub.forget(run.key)

    def discard(self, run: LiveRun) -> None:
        """Drops a run whose memory is ahead of a log that will not catch up."""
        self.behind.drop(run)  # until it is loaded again, if it was ever written
        self.unload(run)
        if run.task is not None:
            self._end_driver(run)

    def start_over(self, run: LiveRun) -> None:
        """Removes a run from memory, to continue it from its log. What it had appended is written first."""
        self.behind.drop(run)
        self.kept.drop(run)
        run.move(GONE)
        release_code(run)
        del self.runs[run.key]
        self._end_driver(run)

    def _end_driver(self, run: LiveRun) -> None:
        """Stops the driver before the run is loaded again, so that no call is made twice at the same time."""
        self.leaving[run.key] = run
        if run.task is not None:
            run.task.cancel()

    def driver_left(self, run: LiveRun) -> None:
        """Called when the driver of a run that is gone has left."""
        release_code(run)  # its tools may have been opened after it was unloaded
        if run.log.outbox.empty and self.leaving.get(run.key) is run:
            del self.leaving[run.key]


def release_code(run: LiveRun) -> None:
    """Notifies the agent's code that the run leaves memory."""
    toolbox = run.work.toolbox
    if toolbox is not None and toolbox.code is not None:
        toolbox.code.leave()
