"""In schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from campaigns.simulation.store import SimulatedLog
from msgspec.structs import replace

from simulation.planted.bug import SCHEDULES, Bug
from weftline.cases.firing import ScheduleAlarm, timing_of
from weftline.store.records import schedules
from weftline.store.records.schedules import ScheduleRow
from weftline.store.rows import Write, Written


class KeepsNoKeys(SimulatedLog):
    """Whether a time of a schedule has its run is not asked before another one is created."""

    async def idempotent(self, workspace: int, route: str, key: str) -> tuple[bytes, int] | None:
        return None if route == "schedules" else await super().idempotent(workspace, route, key)

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return super().flush([self._without_key(write) for write in writes])

    def _without_key(self, write: Write) -> Write:
        once = None if write.new is None else write.new.idempotency
        if write.new is None or once is None or once.route != "schedules":
            return write
        return replace(write, new=replace(write.new, idempotency=None))


class NotesItFirst(ScheduleAlarm):
    """A time is over once somebody has seen to it that its run begins."""

    async def _fire_once(self, row: ScheduleRow, time: int, *, now: int) -> None:
        await self._settle(row, time, now=now)
        await super()._fire_once(row, time, now=now)


class GoesOnFromNow(ScheduleAlarm):
    """After a start, what was due before it is of no interest."""

    async def run(self) -> None:
        now = self._at.clock.now_us()
        for workspace in await self._at.records.read(schedules.due_workspaces(now)):
            for row in await self._at.records.read(schedules.of_workspace(workspace)):
                if row.next_at is not None and row.next_at <= now:
                    await self._at.records.write(schedules.move(row.key, next_at=timing_of(row).next(now)))
        await super().run()


class MakesUpForEverything(ScheduleAlarm):
    """A time that was missed is as good as any other."""

    async def _fire(self, key: int, now: int) -> bool:
        row = await self._at.records.read(schedules.by_key(key))
        return await super()._fire(key, row.next_at if row is not None and row.next_at else now)


BUGS = (
    Bug("keeps_no_keys_of_schedules", "T1 C1 C4 C12", log=KeepsNoKeys, among=SCHEDULES),
    Bug("notes_it_first", "T2 T3", schedules=NotesItFirst, among=SCHEDULES),
    Bug("goes_on_from_now", "T2 T3", schedules=GoesOnFromNow, among=SCHEDULES),
    Bug("makes_up_for_everything", "T3", schedules=MakesUpForEverything, among=SCHEDULES, first=65),
)
