"""The runs in memory, and what moves them: drivers, commits, timers, recovery.

Only runs that are doing something are here. What a commit brings about (waking the next run in line, telling readers,
letting a parked run go) hangs on the commit itself, never on whoever asked for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import DecodeError

from weftline.errors import NotFound, Unavailable, WeftlineError
from weftline.kernel.accept import accepts
from weftline.kernel.entries import Entry, Fact, TimerFired, decode_fact
from weftline.kernel.evolve import fold
from weftline.kernel.state import Decision, State, decode_state
from weftline.providers.catalog import Catalog
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.alarm import Alarm
from weftline.runtime.clock import Clock, SystemClock
from weftline.runtime.driver import Driver
from weftline.runtime.hub import Hub
from weftline.runtime.live import LiveRun
from weftline.runtime.log import Log
from weftline.runtime.model_call import MODEL_TIMEOUT_S
from weftline.runtime.recovery import Recovery
from weftline.runtime.scheduler import Scheduler
from weftline.runtime.toolbox import ServerTools, ToolSource
from weftline.store.base import RunWrite, ThreadEnd, Written
from weftline.store.sqlite.reads import RunRow
from weftline.store.sqlite.store import SqliteStore
from weftline.store.sqlite.transaction import probe
from weftline.tools.base import Tool

logger = logging.getLogger(__name__)

DRAIN_S = 30.0
CLIENT_GRACE_US = 30_000_000
"""After a start or a stall: how long a client has before its overdue answer is given up."""
_STALL_US = 1_000_000
_PAGE = 10_000


class Fleet:
    def __init__(
        self,
        store: SqliteStore | Path | str,
        *,
        models: Catalog | WorkspaceCatalogs,
        tools: ToolSource | Mapping[str, Tool] | None = None,
        clock: Clock | None = None,
        model_timeout_s: float = MODEL_TIMEOUT_S,
    ) -> None:
        self._given_store = store
        self._model_timeout_s = model_timeout_s
        self.models: WorkspaceCatalogs = models if isinstance(models, WorkspaceCatalogs) else WorkspaceCatalogs(models)
        self.tools: ToolSource = ServerTools(tools or {}) if tools is None or isinstance(tools, Mapping) else tools
        self.clock: Clock = clock or SystemClock()
        self.ready = False
        self.on_ended: Callable[[], None] | None = None
        """Called after a commit with which a run ended."""
        self._resident: dict[int, LiveRun] = {}
        self._probing: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        """Opens the store when a path was given, and carries on what an earlier process left."""
        given = self._given_store
        self.store: SqliteStore = (
            await asyncio.to_thread(SqliteStore, given) if isinstance(given, Path | str) else given
        )
        self.read = self.store.read
        self.hub = Hub(self.read)
        self.log = Log(self.store, clock=self.clock, observer=self)
        self.driver = Driver(
            self.log,
            self.read,
            store_id=self.store.id,
            clock=self.clock,
            models=self.models,
            tools=self.tools,
            model_timeout_s=self._model_timeout_s,
        )
        self._scheduler = Scheduler(self._begin)
        self._alarm = Alarm(self._ring, clock=self.clock)
        self._away_until = self.clock.now_us()
        self._grace_until = self._away_until + CLIENT_GRACE_US
        self._recovery = Recovery(self)
        await self._recovery.begin()
        self.ready = True
        return self

    async def stop(self, *, drain_s: float = DRAIN_S) -> None:
        """Begins nothing more, lets what is under way finish for `drain_s`, cuts the rest, and closes the store."""
        await self.drain(drain_s)
        await self.settle()
        await self.close()

    async def drain(self, drain_s: float) -> None:
        """Begins no further run, turn or call, and waits for those under way, `drain_s` at most."""
        self.ready = False
        self.driver.stopping = True
        self._alarm.stop()
        self._recovery.stop()
        tasks = [run.task for run in self._resident.values() if run.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=drain_s)

    async def settle(self) -> None:
        """Cuts what is still under way and makes everything that was appended durable."""
        left = [run.task for run in self._resident.values() if run.task is not None]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        await self._drained()

    async def close(self) -> None:
        await asyncio.to_thread(self.store.close)

    async def _drained(self) -> None:
        """Returns when everything appended is durable, or the store refuses it for good."""
        if self.log.idle or self.log.refusal is not None:
            return
        done = asyncio.get_running_loop().create_future()
        self.log.on_idle = lambda: None if done.done() else done.set_result(None)
        await asyncio.wait([done], timeout=5.0)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None):
        await self.stop()

    def require_accepting(self) -> None:
        """Raises `Unavailable` while the engine is starting, stopping, or its store refuses writes."""
        if not self.ready:
            raise Unavailable("The server is starting or stopping.", retry_after_s=1)
        self.log.require_well()

    # Moving runs

    def load(self, key: int) -> LiveRun:
        """The run in memory; a parked one is read from its row."""
        run = self._resident.get(key)
        if run is not None:
            return run
        row = self.read.run(key)
        if row is None:
            raise NotFound("There is no such run.")
        run = LiveRun(row.key, row.salt, workspace=row.workspace, thread=row.thread, created_at=row.created_at)
        run.state = self._state(row)
        run.next_seq, run.durable = row.next_seq, row.next_seq - 1
        run.row_seq, run.row_version = row.next_seq, row.version
        run.due_at, run.row_due = row.due_at, row.due_at
        run.started_at, run.ended_at = row.started_at, row.ended_at
        run.activated = row.thread is None or row.due_at is not None or run.state.history is not None
        run.adopting = run.state.in_flight
        if not run.state.ended:
            self._resident[key] = run
        return run

    def _state(self, row: RunRow) -> State:
        """The folded state of a run's row; where that does not read, the log is folded anew."""
        try:
            return decode_state(row.state)
        except DecodeError:
            logger.exception("run %d: its stored state does not read; folding its log", row.key)
        try:
            return fold(
                State(), [Entry(seq, at, decode_fact.decode(head)) for seq, at, _, head, _ in self.read.facts(row.key)]
            )
        except DecodeError:
            damaged = "its log does not read"
            return State(seq=row.next_seq - 1, version=row.version, created=True, broken=damaged)

    def advance(self, run: LiveRun) -> None:
        """Lets a run take in what was just appended: ends it here and now, wakes its driver, or starts one."""
        if run.dropped or not (run.activated or run.state.cancel):
            return  # a run that waits in its thread's line takes nothing in before its turn
        if run.state.cancel or not run.scheduled:
            decision = self._settle(run)
            if decision is None:
                return
            if run.state.ended:
                if run.task is not None:
                    run.task.cancel()
                return
            if decision.start and run.activated:
                self._submit(run)
            elif run.due_at:
                self._alarm.at(run.due_at)
        run.poke()

    def _settle(self, run: LiveRun) -> Decision | None:
        """Settles outside a driver. What goes wrong then is as if a driver had failed, and nobody else's business."""
        try:
            return self.driver.settle(run)
        except Exception:
            logger.exception("run %s: it could not be carried on", run.id)
            run.due_at = 0
            self._recovery.driver_failed(run)
            return None

    def adopt(self, run: LiveRun) -> None:
        """Takes a run over from an earlier process and drives it."""
        if run.activated and not run.state.ended:
            self._submit(run)

    def end_by_force(self, run: LiveRun, facts: Sequence[tuple[Fact, bytes]]) -> None:
        """Ends a run without its driver: its own content is not to be trusted. The last fact is the terminal one."""
        self.log.append(run, facts)
        run.due_at = None
        if run.thread is not None and run.write is not None:
            run.write.thread_end = ThreadEnd(run.thread, [])

    def forget(self, run: LiveRun) -> None:
        """Lets go of a run in memory; its log has everything that counts."""
        run.dropped = True
        self._forget(run)

    def is_resident(self, key: int) -> bool:
        return key in self._resident

    def wake_at(self, due_at: int) -> None:
        self._alarm.at(due_at)

    def _submit(self, run: LiveRun) -> None:
        """Has the run driven, now or when its workspace has a place; at most one driver at a time."""
        if not run.scheduled and not run.dropped and not self._recovery.holds(run.key):
            run.scheduled = True
            self._scheduler.submit(run)

    def _begin(self, run: LiveRun) -> None:
        run.task = asyncio.get_running_loop().create_task(self._drive(run))
        run.task.add_done_callback(lambda task: self._gone(run, task))

    def _gone(self, run: LiveRun, task: asyncio.Task[None]) -> None:
        """A task that was cancelled before its first step has run none of its own code."""
        if run.task is task:
            run.task = None
            run.scheduled = False
            self._scheduler.finished(run)
            self._leave(run)

    async def _drive(self, run: LiveRun) -> None:
        failed = False
        try:
            if not run.dropped:  # it may have waited in line for long
                await self.driver.drive(run)
        except asyncio.CancelledError:
            if not (run.state.ended or run.dropped or self.driver.stopping):
                raise
        except Exception:
            logger.exception("run %s: its driver failed", run.id)
            failed = True
        finally:
            run.task = None
            run.scheduled = False
            self._scheduler.finished(run)
        if failed:
            self._recovery.driver_failed(run)
        else:
            self._leave(run)

    def _leave(self, run: LiveRun) -> None:
        """After its driver has gone: a parked run leaves memory as soon as its row says that it is parked."""
        if not (run.state.ended or run.dropped or self.driver.stopping):
            decision = self._settle(run)  # what came while the driver was leaving
            if decision is None:
                return
            if decision.start:
                self._submit(run)
                return
            if run.due_at:
                self._alarm.at(run.due_at)
            on_its_way = run.flight.due_at if run.flight is not None else run.row_due
            if run.write is None and on_its_way != run.due_at:
                self.log.touch(run)
        self._release(run)

    def _release(self, run: LiveRun) -> None:
        """Lets a run go from memory unless somebody drives it or something of it is on its way to the store."""
        if run.idle and (run.state.ended or run.due_at != 0 or not run.activated or run.dropped):
            self._forget(run)

    def _forget(self, run: LiveRun) -> None:
        if self._resident.get(run.key) is run:
            del self._resident[run.key]
            if not run.state.ended:
                self.hub.parked(run.key)

    # What hangs on the commit

    def flushed(self, run: LiveRun, write: RunWrite, result: Written) -> None:
        self.hub.publish(run.key, run.id, write)
        new = write.new
        waited = new is not None and (new.thread is not None or (new.secrets is not None and not run.state.ended))
        if waited and not result.queued:
            run.activated = True
            run.due_at = 0
            self._submit(run)
        elif run.due_at and not run.scheduled:
            self._alarm.at(run.due_at)  # a ring that came before this commit did not see it
        if result.promoted is not None:
            self._promote(result.promoted)
        if self.on_ended is not None and write.ended_at is not None:
            self.on_ended()
        self._recovery.moved(run.key)
        self._release(run)

    def _promote(self, key: int) -> None:
        run = self.load(key)
        if run.state.ended:
            return
        run.activated, run.due_at, run.row_due = True, 0, 0
        self._submit(run)

    def dropped(self, run: LiveRun) -> None:
        """The run's memory was ahead of its log and is gone; it goes on from the log."""
        self._forget(run)
        if run.task is not None:
            run.task.cancel()
        if self.log.refusal is None:
            self._recovery.retry_later(run.key)

    def store_is_well(self) -> None:
        """Picks up the runs that were dropped while the store refused."""
        if not self.driver.stopping:
            self._recovery.pick_up()

    def probe(self) -> None:
        self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        try:
            await self.store.job(probe)
        except WeftlineError as error:
            self.log.probed(error)
        else:
            self.log.probed(None)

    def _ring(self, late_us: int) -> None:
        """Some run is due. After a stall, clients that were about to answer get their grace first."""
        now = self.clock.now_us()
        if late_us > _STALL_US:
            self._away_until = now
            self._grace_until = max(self._grace_until, now + max(late_us, CLIENT_GRACE_US))
        rearm: int | None = None
        due = self.read.due(now, limit=_PAGE)
        if len(due) == _PAGE:
            rearm = now
        for key in due:
            run = self.load(key)
            if run.scheduled or not run.due_at or run.due_at > now:
                continue
            if now < self._grace_until and self._client_was_cut_off(run.state):
                rearm = min(rearm or self._grace_until, self._grace_until)
                self._release(run)
                continue
            head = TimerFired(now)
            if accepts(run.state, head):
                self.driver.append(run, head, b"")
                self.advance(run)
        upcoming = self.read.next_due(now)
        for time in (upcoming, rearm):
            if time is not None:
                self._alarm.at(time)

    def _client_was_cut_off(self, state: State) -> bool:
        """Whether a client had a call open while this server was away or stalled, and so could not answer it."""
        opened_before = self._away_until + state.limits.local_timeout_us
        return any(
            call.client and call.status == "opened" and (call.deadline_at or 0) < opened_before for call in state.calls
        )
