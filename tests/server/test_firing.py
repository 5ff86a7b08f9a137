"""When schedules fire: on a real store, an engine, and a clock that the test holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.server import WallClock
from msgspec import Struct
from msgspec.json import decode, encode

from weftline.cases import agents, schedules
from weftline.cases.agents import AgentDraft
from weftline.cases.firing import SCHEDULE_KEY, TIME_KEY, ScheduleAlarm, Timing, start, start_now, started
from weftline.cases.schedules import ScheduleChangesModel, checked_work
from weftline.errors import InvalidRequest, RateLimited, StoreError
from weftline.kernel.bodies import decode_created
from weftline.plan import decode_plan, limits_of
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.runtime.engine import OwnedEngine
from weftline.runtime.new_engine import new_engine
from weftline.server.large import LargeResponses
from weftline.store import open_store
from weftline.store.database import Query, statement
from weftline.store.memory import MemoryDisk, MemoryStore
from weftline.store.records.schedules import ScheduleRow, due_workspaces
from weftline.store.rows import RunFilter
from weftline.work.turns import FairSemaphore
from weftline.workspace import workspaces
from weftline.workspace.context import Workspaces

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = datetime(2027, 1, 15, 8, 30, tzinfo=UTC)
SPEC: dict[str, Any] = {"modelId": "scripted:hello", "prompt": "hi", "metadata": {"team": "a"}}
HOURLY = Timing(cron="0 * * * *")


def us(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


class Clock:
    def __init__(self) -> None:
        self.time = NOW

    def now_us(self) -> int:
        return us(self.time)


class Caller(Struct, frozen=True):
    workspace: int
    agents: tuple[str, ...] = ()


async def never(row: ScheduleRow, time: int) -> str | None:
    """A schedule that has had no run yet."""
    return None


async def fire_all(alarm: ScheduleAlarm, at: Workspaces) -> bool:
    """Starts everything that is due now. Returns False if some of it has to be tried again."""
    due = await at.records.read(due_workspaces(at.clock.now_us()))
    return None not in await asyncio.gather(*map(alarm.fire_due, due))


class Host:
    def __init__(self, engine: OwnedEngine, at: Workspaces) -> None:
        self.engine = engine
        self.workspaces = at
        self.large = LargeResponses()
        self.pages = FairSemaphore(per_owner=1)
        self.alarm = ScheduleAlarm(at, start=partial(start, self), started=partial(started, self))
        self.space = 0

    async def schedule(self, timing: Timing, spec: dict[str, Any] = SPEC) -> ScheduleRow:
        work, _, _ = await checked_work(self.workspaces, Caller(self.space), encode(spec), requested_by="key:a")
        return await schedules.add(self.workspaces, Caller(self.space), "nightly", timing=timing, work=work)

    async def row(self, row: ScheduleRow) -> ScheduleRow:
        return await schedules.find(self.workspaces, Caller(self.space), row.id)

    async def times(self, row: ScheduleRow) -> list[str]:
        """Those that the schedule's runs began for, in order of their creation."""
        wanted = RunFilter(workspace=self.space, metadata=((SCHEDULE_KEY, row.id),), limit=1000)
        return [decode(run.metadata)[TIME_KEY][:16] for run in reversed(await self.engine.stored.logs.runs(wanted))]


def models() -> Catalog:
    catalog = Catalog()
    catalog.add(ScriptedProvider(parse_scripts(b'{"hello": {"turns": [{"text": "hello"}]}}')))
    return catalog


@asynccontextmanager
async def opened(folder: Path, clock: Clock) -> AsyncGenerator[Host]:
    store = open_store(folder / "store")
    async with new_engine(store, models=models(), clock=clock) as engine:
        host = Host(engine, Workspaces(store.records, store.vault, clock))
        host.space = await workspaces.ensure(host.workspaces, "acme")
        yield host
    await store.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def host(tmp_path: Path, clock: Clock) -> AsyncGenerator[Host]:
    async with opened(tmp_path, clock) as one:
        yield one


async def test_time_makes_one_run_which_says_what_it_is_for(host: Host, clock: Clock) -> None:
    row = await host.schedule(Timing(at=us(NOW + timedelta(minutes=5))))
    assert await fire_all(host.alarm, host.workspaces) and await host.times(row) == []
    clock.time += timedelta(minutes=5)
    for _ in range(2):
        assert await fire_all(host.alarm, host.workspaces)
    (run,) = await host.engine.stored.logs.runs(RunFilter(workspace=host.space, metadata=(("team", "a"),)))
    assert decode(run.metadata) == {"team": "a", SCHEDULE_KEY: row.id, TIME_KEY: "2027-01-15T08:35:00.000000Z"}
    after = await host.row(row)
    assert after.next_at is None and after.last_run is not None and after.last_error == ""
    assert await host.engine.locate(after.last_run, workspace=host.space) == run.key


async def test_cron_goes_by_the_clocks_of_its_zone(host: Host, clock: Clock) -> None:
    row = await host.schedule(Timing(cron="0 9 * * 1-5", timezone="America/New_York"))
    clock.time = datetime(2027, 1, 15, 13, 59, tzinfo=UTC)
    await fire_all(host.alarm, host.workspaces)
    assert await host.times(row) == []
    clock.time += timedelta(minutes=1)
    await fire_all(host.alarm, host.workspaces)
    assert await host.times(row) == ["2027-01-15T14:00"]
    assert (await host.row(row)).next_at == us(datetime(2027, 1, 18, 14, tzinfo=UTC))


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("skip", []),
        ("once", ["2027-01-15T12:00"]),
        ("all", [f"2027-01-15T{hour:02}:00" for hour in (9, 10, 11, 12)]),
    ],
)
async def test_missed_times_are_made_up_for_as_configured(
    catch_up: str, expected: list[str], tmp_path: Path, clock: Clock
) -> None:
    async with opened(tmp_path, clock) as before:
        row = await before.schedule(Timing(cron="0 * * * *", catch_up=catch_up))
        once = await before.schedule(Timing(at=us(NOW + timedelta(hours=1)), catch_up=catch_up))
    clock.time = NOW + timedelta(hours=4)
    async with opened(tmp_path, clock) as after:
        for _ in range(2):
            assert await fire_all(after.alarm, after.workspaces)
        assert await after.times(row) == expected
        assert await after.times(once) == ([] if catch_up == "skip" else ["2027-01-15T09:30"])
        now = await after.row(row)
        assert now.next_at == us(datetime(2027, 1, 15, 13, tzinfo=UTC))
        assert now.last_error == ("Skipped: its time was missed." if catch_up == "skip" else "")
        assert now.last_at == us(datetime(2027, 1, 15, 12, tzinfo=UTC)), "not the latest of the missed times"
        assert (await after.row(once)).last_at == once.next_at
        clock.time = datetime(2027, 1, 15, 13, 0, 20, tzinfo=UTC)  # a little late is not missed
        await fire_all(after.alarm, after.workspaces)
        assert await after.times(row) == [*expected, "2027-01-15T13:00"]


async def test_it_makes_up_for_the_last_hundred_times_at_most(host: Host, clock: Clock) -> None:
    row = await host.schedule(Timing(cron="* * * * *", catch_up="all"))
    clock.time += timedelta(days=400)
    assert await fire_all(host.alarm, host.workspaces)
    assert len(times := await host.times(row)) == 100 and times[-1] == clock.time.isoformat()[:16]


async def test_two_that_fire_at_once_make_one_run(host: Host, clock: Clock) -> None:
    row = await host.schedule(HOURLY)
    clock.time += timedelta(hours=1)
    other = ScheduleAlarm(host.workspaces, start=partial(start, host), started=partial(started, host))
    assert all(
        await asyncio.gather(
            fire_all(host.alarm, host.workspaces),
            fire_all(other, host.workspaces),
            fire_all(host.alarm, host.workspaces),
        )
    )
    assert await host.times(row) == ["2027-01-15T09:00"]


async def test_run_with_a_missed_deadline_is_named_after_a_crash(host: Host, clock: Clock) -> None:
    row = await host.schedule(Timing(cron="@hourly", catch_up="skip"))
    began_for = us(datetime(2027, 1, 15, 10, tzinfo=UTC))

    async def second(row: ScheduleRow, time: int) -> str | None:
        return "run_2" if time == began_for else None

    clock.time += timedelta(hours=4)
    assert await fire_all(ScheduleAlarm(host.workspaces, start=partial(start, host), started=second), host.workspaces)
    after = await host.row(row)
    assert (after.last_run, after.last_error) == ("run_2", "")


async def test_run_that_began_in_time_is_not_reported_skipped(host: Host, clock: Clock) -> None:
    """The process died between the run and the note about it, and the next one begins when the time is long over."""
    row = await host.schedule(Timing(cron="@hourly", catch_up="skip"))
    clock.time += timedelta(hours=1)
    assert row.next_at is not None
    run = await start(host, row, row.next_at)
    clock.time += timedelta(minutes=20)
    assert await fire_all(host.alarm, host.workspaces)
    now = await host.row(row)
    assert (now.last_run, now.last_error, now.last_at) == (run, "", row.next_at)
    assert await host.times(row) == ["2027-01-15T09:00"]


async def test_a_clock_that_is_set_back_repeats_nothing(host: Host, clock: Clock) -> None:
    row = await host.schedule(HOURLY)
    for hours in (1, -3, 2, 1):
        clock.time += timedelta(hours=hours)
        await fire_all(host.alarm, host.workspaces)
    assert await host.times(row) == ["2027-01-15T09:00"]
    clock.time += timedelta(hours=1)
    await fire_all(host.alarm, host.workspaces)
    assert await host.times(row) == ["2027-01-15T09:00", "2027-01-15T10:00"]


async def test_schedule_whose_agent_is_gone_says_so_and_goes_on(host: Host, clock: Clock) -> None:
    draft = AgentDraft(name="Sweeper", spec=encode({"modelId": "scripted:hello"}))
    agent = await agents.add(host.workspaces, host.space, draft)
    row = await host.schedule(HOURLY, {"agentId": "sweeper", "prompt": "hi"})
    assert row.agent == agent.id
    clock.time += timedelta(hours=1)
    await fire_all(host.alarm, host.workspaces)
    await agents.remove(host.workspaces, host.space, agent.id)
    clock.time += timedelta(hours=1)
    assert await fire_all(host.alarm, host.workspaces)
    assert await host.times(row) == ["2027-01-15T09:00"]
    after = await host.row(row)
    assert f"no agent '{agent.id}'" in after.last_error and after.last_run is not None
    assert after.next_at == us(datetime(2027, 1, 15, 11, tzinfo=UTC))


async def test_full_queue_is_tried_again_and_no_time_is_lost(host: Host, clock: Clock) -> None:
    full = True

    async def refusing(row: ScheduleRow, time: int) -> str:
        if full:
            raise RateLimited("Too many runs are queued.", code="too_many_runs")
        return await start(host, row, time)

    alarm = ScheduleAlarm(host.workspaces, start=refusing, started=never)
    row = await host.schedule(HOURLY)
    clock.time += timedelta(minutes=31)
    assert not await fire_all(alarm, host.workspaces)
    assert (await host.row(row)).next_at == us(datetime(2027, 1, 15, 9, tzinfo=UTC))
    full = False
    assert await fire_all(alarm, host.workspaces) and await host.times(row) == ["2027-01-15T09:00"]


async def test_resumed_schedule_makes_up_for_nothing(host: Host, clock: Clock) -> None:
    row = await host.schedule(HOURLY)
    caller = Caller(host.space)
    assert (await schedules.amend(host.workspaces, caller, row.id, ScheduleChangesModel(enabled=False))).next_at is None
    clock.time += timedelta(hours=5)
    await fire_all(host.alarm, host.workspaces)
    again = await schedules.amend(host.workspaces, caller, row.id, ScheduleChangesModel(enabled=True))
    assert again.next_at == us(datetime(2027, 1, 15, 14, tzinfo=UTC))
    await fire_all(host.alarm, host.workspaces)
    assert await host.times(row) == []


def test_alarm_wakes_in_time_and_for_new_schedules() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        wall, store = WallClock(loop), MemoryStore(MemoryDisk())
        started: asyncio.Queue[int] = asyncio.Queue()

        async def note(row: ScheduleRow, time: int) -> str:
            started.put_nowait(wall.now_us() - time)
            return "run_x"

        at = Workspaces(store.records, store.vault, wall)
        space = await workspaces.ensure(at, "acme")
        alarm = ScheduleAlarm(at, start=note, started=never)
        work, _, _ = await checked_work(at, Caller(space), encode(SPEC), requested_by="")
        task = asyncio.create_task(alarm.run())
        await asyncio.sleep(1)
        soon = Timing(at=wall.now_us() + 3_000_000)
        await schedules.add(at, Caller(space), "soon", timing=soon, work=work)
        alarm.changed()
        assert 0 <= await started.get() < 1_000_000
        await schedules.add(at, Caller(space), "again", timing=Timing(cron="* * * * *"), work=work)
        alarm.changed()
        assert max([await started.get() for _ in range(3)]) < 1_000_000
        wall.offset_s += 3600
        assert await started.get() <= 60_000_000, "the last of the times that were missed"
        task.cancel()
        await asyncio.wait({task})

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())


async def test_a_workspace_has_so_many_schedules_and_no_more(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weftline.cases.schedules.MAX_PER_WORKSPACE", 2)
    for _ in range(2):
        await host.schedule(HOURLY)
    with pytest.raises(InvalidRequest, match="at most 2 schedules"):
        await host.schedule(HOURLY)


async def test_workspace_with_a_backlog_holds_up_no_other(host: Host, clock: Clock) -> None:
    for _ in range(20):
        await host.schedule(Timing(cron="* * * * *", catch_up="all"))
    other = await workspaces.ensure(host.workspaces, "other")
    work, _, _ = await checked_work(host.workspaces, Caller(other), encode(SPEC), requested_by="key:b")
    late = await schedules.add(host.workspaces, Caller(other), "late", timing=HOURLY, work=work)
    begun, order = asyncio.Event(), list[str]()

    async def note(fired: ScheduleRow, time: int) -> str:
        order.append(fired.id)
        if fired.id == late.id:
            begun.set()
        else:
            await asyncio.wait_for(begun.wait(), 3)  # two thousand of these are due
        return "run_1"

    clock.time += timedelta(hours=3)
    alarm = ScheduleAlarm(host.workspaces, start=note, started=never)
    task = asyncio.create_task(alarm.run())
    await asyncio.wait_for(begun.wait(), 3)
    assert len(order) <= 3
    task.cancel()
    await asyncio.wait({task})


def test_work_due_during_other_work_is_not_forgotten() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        wall, store = WallClock(loop), MemoryStore(MemoryDisk())
        started: asyncio.Queue[str] = asyncio.Queue()

        async def slow(row: ScheduleRow, time: int) -> str:
            started.put_nowait(row.name)
            await asyncio.sleep(10)
            return "run_x"

        at = Workspaces(store.records, store.vault, wall)
        space = await workspaces.ensure(at, "acme")
        work, _, _ = await checked_work(at, Caller(space), encode(SPEC), requested_by="")
        for name, after_s in (("first", 3), ("second", 5)):
            timing = Timing(at=wall.now_us() + after_s * 1_000_000)
            await schedules.add(at, Caller(space), name, timing=timing, work=work)
        task = asyncio.create_task(ScheduleAlarm(at, start=slow, started=never).run())
        assert [await started.get() for _ in range(2)] == ["first", "second"]
        assert loop.time() < 20, "it is started when the first one is done"
        task.cancel()
        await asyncio.wait({task})

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())


async def test_full_queue_is_asked_once_and_not_by_each_schedule(host: Host, clock: Clock) -> None:
    asked: list[str] = []

    async def refusing(row: ScheduleRow, time: int) -> str:
        asked.append(row.id)
        raise RateLimited("Too many runs are queued.", code="too_many_runs")

    for _ in range(10):
        await host.schedule(HOURLY)
    clock.time += timedelta(hours=1)
    assert not await fire_all(ScheduleAlarm(host.workspaces, start=refusing, started=never), host.workspaces)
    assert len(asked) <= 2


@pytest.mark.parametrize(
    "damage",
    [f"{column} = CAST(x'ff' AS TEXT)" for column in ("agents", "cron", "timezone", "catch_up", "requested_by")]
    + ["agents = '{'", "spec = x'7b'", "next_at = -5", "created_at = -9223372036854775808"],
)
async def test_a_damaged_schedule_starts_nothing_and_the_others_go_on(host: Host, clock: Clock, damage: str) -> None:
    broken, whole = await host.schedule(HOURLY), await host.schedule(HOURLY)

    def query() -> Query[None]:
        yield from statement(f"UPDATE schedules SET {damage} WHERE key = $1", broken.key)

    await host.workspaces.records.write(query())
    for hour in (9, 10):
        clock.time = NOW.replace(hour=hour)
        assert await fire_all(host.alarm, host.workspaces)
    assert await host.times(broken) == []
    assert await host.times(whole) == ["2027-01-15T09:00", "2027-01-15T10:00"]
    caller = Caller(host.space)
    listed = await schedules.rows_of(host.workspaces, caller)
    column = damage.split()[0]
    assert [one.damaged for one in listed] == ["" if column == "spec" else column, ""]
    with pytest.raises(StoreError, match=f"its {column} cannot be read") as refused:
        await host.row(broken)
    assert refused.value.code == "log_damaged"
    with pytest.raises(StoreError, match=f"its {column} cannot be read"):
        await schedules.amend(host.workspaces, caller, broken.id, ScheduleChangesModel(enabled=False))
    await schedules.delete(host, caller, broken.id)
    assert [one.id for one in await schedules.rows_of(host.workspaces, caller)] == [whole.id]


async def test_schedule_whose_agent_is_damaged_says_so_and_goes_on(host: Host, clock: Clock) -> None:
    draft = AgentDraft(name="Sweeper", spec=encode({"modelId": "scripted:hello"}))
    agent = await agents.add(host.workspaces, host.space, draft)
    row = await host.schedule(HOURLY, {"agentId": "sweeper", "prompt": "hi"})

    def query() -> Query[None]:
        yield from statement("UPDATE agents SET spec = x'7b' WHERE id = $1", agent.id)

    await host.workspaces.records.write(query())
    clock.time += timedelta(hours=1)
    assert await fire_all(host.alarm, host.workspaces)
    after = await host.row(row)
    assert "is damaged" in after.last_error and after.next_at == us(datetime(2027, 1, 15, 10, tzinfo=UTC))


async def test_scheduled_run_is_requested_by_the_author(host: Host) -> None:
    """With four eyes the author of a schedule does not approve its calls because somebody else pressed the button."""
    row = await host.schedule(HOURLY)
    await start_now(host, Caller(host.space), row)
    (run,) = await host.engine.stored.logs.runs(RunFilter(workspace=host.space))
    created = await host.engine.stored.logs.entry(run.key, 1)
    assert created is not None
    plan = decode_plan(decode_created(created.body).plan, limits_of(created.head))
    assert plan.requested_by == row.requested_by == "key:a"
