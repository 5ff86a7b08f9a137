"""Schedules in the simulation, and T1 to T3: each time of a schedule has the one run that its catch-up policy requires.

T1: a run belongs to a time of its schedule, each time has one at most, and none begins before its time.
T2: every time is handled: with `all` each has its run, otherwise each that passed while a server was running to see it,
and with `once` the latest of those that were missed together.
T3: with `skip` no run begins for a missed time, and the schedule records which of its runs was the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from msgspec import Struct

from campaigns.simulation.disk import FAST_S, Disk
from campaigns.simulation.evidence import Evidence, RunLog
from campaigns.simulation.orders import Order
from campaigns.simulation.server import WallClock
from campaigns.simulation.trace import Violation, require
from weftline.cases.firing import ON_TIME_US, ScheduleAlarm, Timing
from weftline.runtime.engine import Engine
from weftline.store.base import Store
from weftline.store.records import schedules
from weftline.store.records.schedules import ScheduleColumns, ScheduleRow
from weftline.store.rows import IdempotencyKey, Write
from weftline.workspace.context import Workspaces

LONGEST_S = 3000.0
"""By then everything that was due is handled: no server is down for long, and none retries for minutes."""
SEEN_S = 36.0
"""How long a server has to be running to notice a time: it checks every 30 s at least, and again after 5 s."""
_EVERY = ("* * * * *", "*/5 * * * *", "13,14,17,20 * * * *")
_SECOND = 1_000_000


class Planned(Struct):
    """A schedule of a history."""

    key: int
    id: str
    timing: Timing
    since: int
    until: int = 0
    """Its next time when it was switched off: all earlier ones are handled."""
    last: tuple[int | None, str | None] = None, None
    """The time and the run that the schedule itself names as the last ones."""

    def times(self) -> list[int]:
        """When it was due."""
        found: list[int] = []
        time = self.timing.next(self.since)
        while time is not None and time < self.until:
            found.append(time)
            time = self.timing.next(time)
        return found


class Schedules:
    """Creates some schedules, and switches them off when everything that was due is handled."""

    def __init__(self, disk: Disk, orders: dict[str, Order], rng: Random, *, clock: WallClock) -> None:
        self._disk = disk
        self._orders = orders
        self._rng = rng
        self._clock = clock
        self.planned = [self._insert(number) for number in range(rng.choice((1, 1, 2)))]

    def _insert(self, number: int) -> Planned:
        now, rng = self._clock.now_us(), self._rng
        catch_up = rng.choice(("skip", "once", "all"))
        if rng.random() < 0.3:
            timing = Timing(at=now + int(rng.random() * 60 * _SECOND), catch_up=catch_up)
        else:
            timing = Timing(cron=rng.choice(_EVERY[catch_up == "all" :]), catch_up=catch_up)
        columns = ScheduleColumns(
            name=f"s{number}",
            agent=None,
            at=timing.at,
            cron=timing.cron,
            timezone=timing.timezone,
            catch_up=catch_up,
            enabled=True,
            next_at=timing.next(now),
            requested_by="",
            agents=(),
            spec=b"{}",
            secrets=None,
        )
        insert = schedules.insert(f"sch_{number}", columns, workspace=self._disk.workspace, digest=b"", now=now)
        row = self._disk.write(insert)
        return Planned(row.key, row.id, timing, now)

    async def run(self, engine: Engine, store: Store, new_alarm: Callable[..., ScheduleAlarm]) -> None:
        """Runs inside a process."""
        workspace = self._disk.workspace

        async def start(row: ScheduleRow, time: int) -> str:
            order = Order(tag=f"{row.id}@{time}", tools=("look",))
            self._orders[order.tag] = order
            return await engine.create(workspace, order.plan, idempotency=_once(row, time))

        async def started(row: ScheduleRow, time: int) -> str | None:
            return await engine.created_before(workspace, _once(row, time))

        at = Workspaces(records=store.records, vault=store.vault, clock=self._clock)
        await new_alarm(at, start=start, started=started).run()

    async def watch(self) -> None:
        """Watches from outside."""
        await asyncio.sleep(self._rng.random() * 250.0)
        loop = asyncio.get_running_loop()
        over_s = loop.time() + LONGEST_S
        for one in self.planned:
            while (row := self._row(one)).next_at is not None and row.next_at <= self._clock.now_us():
                if loop.time() > over_s:
                    raise Violation("T2", f"{one.id} was due at {row.next_at}, and nothing has become of it")
                await asyncio.sleep(1.0)
            # The clock may have been set back after its only time.
            one.until = max(self._clock.now_us(), one.timing.at or 0) + 1 if row.next_at is None else row.next_at
            one.last = row.last_at, row.last_run
            self._disk.write(schedules.move(one.key, next_at=None))

    def strikes(self, writes: Sequence[Write]) -> str:
        """Kills strike where they hurt: when the run of a time is created."""
        created = [write.new.name for write in writes if write.new is not None]
        if not any(name.startswith("sch_") for name in created) or self._rng.random() < 0.6:
            return ""
        return self._rng.choice(("before", "after"))

    def _row(self, one: Planned) -> ScheduleRow:
        row = self._disk.read(schedules.by_key(one.key))
        assert row is not None
        return row


def _once(row: ScheduleRow, time: int) -> IdempotencyKey:
    return IdempotencyKey("schedules", f"{row.id}@{time}", b"")


def check_schedules(evidence: Evidence, logs: Sequence[RunLog], planned: Sequence[Planned]) -> None:
    """Raises `Violation`."""
    for one in planned:
        mine = [log for log in logs if log.order.tag.startswith(f"{one.id}@")]
        runs: dict[int, RunLog] = {}
        for log in mine:
            time = int(log.order.tag.partition("@")[2])
            require("T1", time not in runs, f"{one.id} has two runs for {time}")
            runs[time] = log
        _belong(evidence, one, runs)
        # The next time has its run already if a process died before its schedule advanced, and the clock was set back.
        runs.pop(one.until, None)
        _dealt_with(evidence, one, runs)
        _noted(one, runs)


def _belong(evidence: Evidence, one: Planned, runs: dict[int, RunLog]) -> None:
    due = {*one.times(), one.until}
    for time, log in runs.items():
        require("T1", time in due, f"{one.id} has a run for {time}, which is none of its times")
        began = log.entries[0].at
        if not evidence.troubles.clock_was_set:
            require("T1", began >= time, f"{one.id}: the run for {time} began at {began}")
            late_us = began - time - ON_TIME_US
            in_time = late_us <= LATE_US or one.timing.catch_up != "skip"
            require("T3", in_time, f"{one.id}: the run for {time} began {late_us} µs after it was missed")


LATE_US = 3 * _SECOND
"""How long a write may take in addition."""


def _dealt_with(evidence: Evidence, one: Planned, runs: dict[int, RunLog]) -> None:
    due = one.times()
    if one.timing.catch_up == "all":
        missing = [time for time in due if time not in runs]
        require("T2", not missing, f"{one.id} has no run for {missing}")
        return
    if one.timing.catch_up == "once" and due:
        require("T2", due[-1] in runs, f"{one.id} has no run for {due[-1]}, the last of its times")
    if not evidence.troubles.clock_was_set and evidence.disk.faults.slowest_s <= FAST_S:
        for time in due:
            if time not in runs:
                require("T2", not _was_seen(evidence, time), f"{one.id} has no run for {time}, when a server was there")


def _was_seen(evidence: Evidence, time: int) -> bool:
    """Whether one process was running from then on for long enough, without trouble."""
    since_s = time / _SECOND - evidence.epoch_s
    until_s = since_s + SEEN_S
    troubles = (*evidence.troubles.stalls, *evidence.troubles.sick)
    there = any(up.since_s <= since_s and until_s < up.until_s for up in evidence.times.values())
    return there and not any(window.touches(since_s, until_s) for window in troubles)


def _noted(one: Planned, runs: dict[int, RunLog]) -> None:
    last_at, last_run = one.last
    if last_at in runs:
        require("T3", last_run == runs[last_at].run_id, f"{one.id}: {last_run} is not its run for {last_at}")
    require("T3", not runs or last_run is not None, f"{one.id} names no run, and has {len(runs)}")
