"""A process with a schedule: `python schedule_process.py FOLDER HOURS`.

It makes the schedule if there is none, starts what is due so many hours later, and prints the times of all its runs.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.json import decode, encode

from weftline.cases import schedules
from weftline.cases.firing import TIME_KEY, ScheduleAlarm, Timing, start, started
from weftline.cases.schedules import checked_work
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.runtime.engine import OwnedEngine
from weftline.runtime.new_engine import new_engine
from weftline.store import open_store
from weftline.store.rows import RunFilter
from weftline.workspace import workspaces
from weftline.workspace.context import Workspaces

NOON_US = 1_800_000_000_000_000 // 86_400_000_000 * 86_400_000_000 + 43_200_000_000
HOUR_US = 3_600_000_000
SPEC = {"modelId": "scripted:hello", "prompt": "hi"}


class Clock(Struct):
    us: int

    def now_us(self) -> int:
        return self.us


class Caller(Struct, frozen=True):
    workspace: int
    agents: tuple[str, ...] = ()


class Host(Struct, frozen=True):
    engine: OwnedEngine
    workspaces: Workspaces


async def main(folder: Path, hours: int) -> None:
    store = open_store(folder / "store")
    clock = Clock(NOON_US)
    models = Catalog()
    models.add(ScriptedProvider(parse_scripts(b'{"hello": {"turns": [{"text": "hello"}]}}')))
    at = Workspaces(store.records, store.vault, clock)
    async with new_engine(store, models=models, clock=clock) as engine:
        space = await workspaces.ensure(at, "acme")
        if not await schedules.rows_of(at, Caller(space)):
            work, _, _ = await checked_work(at, Caller(space), encode(SPEC), requested_by="")
            await schedules.add(at, Caller(space), "hourly", timing=Timing(cron="@hourly", catch_up="all"), work=work)
        clock.us += hours * HOUR_US
        host = Host(engine, at)
        await ScheduleAlarm(at, start=partial(start, host), started=partial(started, host)).fire_due(space)
        runs = await engine.stored.logs.runs(RunFilter(workspace=space))
        print(*sorted(decode(run.metadata)[TIME_KEY][11:16] for run in runs))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
