"""What happens to a run whose driver fails, whose store is sick, or that is suspected of killing the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from runtime.kit import TIMEOUT_S, MoodyStore, ended, engine_on, facts, new_thread, plan, until
from weftline.errors import InvalidRequest
from weftline.kernel.entries import AttemptFailed, RunEnded, TurnCompleted
from weftline.kernel.state import CallModel
from weftline.plan import LocalRef, ServerRef
from weftline.runtime import carry_out as carrying
from weftline.runtime import recovery, trials
from weftline.runtime.fleet import fleet, timers
from weftline.runtime.tasks import wait_while_running
from weftline.store.memory import MemoryDisk
from weftline.store.memory.disk import MemoryRun
from weftline.store.records import threads
from weftline.store.rows import IdempotencyKey
from weftline.tools.base import ToolOutput
from weftline.tools.decorator import tool


def _look(n: int) -> dict[str, Any]:
    return {"deltas": ["one ", "moment"], "tool_calls": [{"name": "look", "args": {"n": n}}]}


SCRIPTS: dict[str, Any] = {
    "hello": {"turns": [{"text": "hi"}]},
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "thanks"}]},
    "pay": {"turns": [{"tool_calls": [{"name": "pay", "args": {}}]}, {"text": "paid"}]},
    "retry": {"turns": [{"error": {"class": "overloaded"}}, {"text": "at last"}]},
    "hello-twice": {"turns": [{"tool_calls": [{"name": "steady", "args": {}}]}, {"text": "done"}]},
    "slow": {"turns": [{"deltas": ["a", "b", "c"], "delay_ms": 60_000}]},
    "look": {"turns": [*[_look(n) for n in range(8)], {"text": "done"}]},
}


@tool(effect="read")
async def look(n: int) -> str:
    """Looks."""
    return f"view {n}"


class Shaky:
    """Carries out commands, but raises after a model has answered, always or every other time."""

    def __init__(self, *, always: bool) -> None:
        self._always = always
        self._answers = 0

    async def __call__(self, command: Any, state: Any, work: Any, services: Any, sink: Any) -> Any:
        outcome = await carrying.carry_out(command, state, work, services, sink)
        if isinstance(command, CallModel):
            self._answers += 1
            if self._always or self._answers % 2:
                raise RuntimeError("a bug")
        return outcome


async def test_run_with_a_failing_driver_is_given_up_while_streaming() -> None:
    it, provider = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, tools={"look": look}, carry_out=Shaky(always=True))
    async with it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("look", ServerRef("look")))
        end = await ended(it, run_id, space)
        assert (end.status, end.code) == ("failed", "worker_error")
        assert len(provider.requests) == recovery.MAX_RECOVERIES


@pytest.mark.requirement("run.crash.poison")
@pytest.mark.parametrize("most", [recovery.MAX_RECOVERIES, 1])
async def test_failing_run_is_retried_while_others_continue(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times, or as the setting says. The process has died as often as possible with one run, which a last death
    is held against; another one was under way, too, and a third one's driver fails."""
    monkeypatch.setattr(trials, "TRIAL_S", 0.001)
    monkeypatch.setattr(recovery, "RETRY_S", 0.001)
    disk = MemoryDisk()

    async def carry_out(command: Any, state: Any, work: Any, services: Any, sink: Any) -> Any:
        outcome = await carrying.carry_out(command, state, work, services, sink)
        if work.plan.name == "fails":
            raise RuntimeError("a bug")
        return outcome

    dead, _ = engine_on(MoodyStore(disk), SCRIPTS)
    await dead.start()
    space = await dead.workspace("acme")
    killer, other = [await dead.create(space, plan("slow")) for _ in range(2)]
    await until(lambda: all(any(item.kind == "delta.text" for item in run.items) for run in disk.runs.values()))
    row = disk.runs[1].row
    row.trial_size, row.deaths_alone, row.deaths = 1, most - 1, most - 1
    disk.runs[1].trial = 1
    it, provider = engine_on(MoodyStore(disk), SCRIPTS, carry_out=carry_out, max_recoveries=most)
    async with it:
        fails = await it.create(space, replace(plan("hello"), name="fails"))
        assert (await ended(it, await it.create(space, plan("hello")), space)).status == "succeeded"
        for run_id in (killer, fails):
            ends = [head for head in await facts(it, run_id, space) if isinstance(head, RunEnded)]
            assert [(end.status, end.code) for end in ends] == [("failed", "worker_error")]
            row = await it.stored.find(run_id, workspace=space)
            last = await it.stored.logs.entry(row.key, row.next_seq - 1)
            assert last is not None
            assert b"its recovery failed repeatedly" in last.body
        key = await it.locate(other, workspace=space)
        await until(lambda: any(item.kind == "run.adopted" for item in disk.runs[key].items))
        asked = [request.model for request in provider.requests]
        assert asked.count("hello") == 1 + most
        await it.cancel(key)
        known = it._fleet.recovery.trials._tried  # pyright: ignore[reportPrivateUsage]
        await until(lambda: not known)  # what has ended is not remembered for ever
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)
    await dead.stop(drain_s=0)


async def test_driver_errors_with_progress_in_between_end_nothing() -> None:
    it, _ = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, tools={"look": look}, carry_out=Shaky(always=False))
    async with it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("look", ServerRef("look")))
        heads = await facts(it, run_id, space)
        lost = [head for head in heads if isinstance(head, AttemptFailed) and head.reason == "abandoned"]
        assert len(lost) > recovery.MAX_RECOVERIES
        assert sum(isinstance(head, TurnCompleted) for head in heads) > 1
        assert isinstance(heads[-1], RunEnded)
        assert heads[-1].status == "succeeded"


async def test_temporarily_unreadable_store_gives_up_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "STORE_RETRY_S", 0.001)
    store = MoodyStore(MemoryDisk())
    it, _ = engine_on(store, SCRIPTS)
    async with it:
        space, thread = await new_thread(store)
        store.log.unreadable = 2 * recovery.MAX_RECOVERIES
        run_id = await it.create(space, plan("hello"), thread=thread)
        assert (await ended(it, run_id, space)).status == "succeeded"
        assert store.log.unreadable == 0


async def test_run_that_cannot_be_loaded_at_start_is_loaded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "STORE_RETRY_S", 0.001)
    disk = MemoryDisk()
    dead, _ = engine_on(MoodyStore(disk), SCRIPTS)
    await dead.start()
    space = await dead.workspace("acme")
    run_id = await dead.create(space, plan("slow"))
    (run,) = disk.runs.values()
    await until(lambda: any(item.kind == "attempt.started" for item in run.items))
    store = MoodyStore(disk)
    store.log.unclaimable = 3
    it, _ = engine_on(store, SCRIPTS)
    async with it:
        await until(lambda: any(item.kind == "run.adopted" for item in run.items))
        await it.cancel(await it.locate(run_id, workspace=space))
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)
    await dead.stop(drain_s=0)


async def test_server_is_ready_before_runs_that_it_recovers_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    dead, _ = engine_on(MoodyStore(disk), SCRIPTS)
    await dead.start()
    space = await dead.workspace("acme")
    left = await dead.create(space, plan("slow"))
    (run,) = disk.runs.values()
    await until(lambda: any(item.kind == "attempt.started" for item in run.items))
    store = MoodyStore(disk)
    store.log.claims_gate.clear()
    it, _ = engine_on(store, SCRIPTS)
    async with it:
        assert run.trial, "whatever recovers a run is preceded by a record of it"
        assert (await ended(it, await it.create(space, plan("hello")), space)).status == "succeeded"
        store.log.claims_gate.set()
        await until(lambda: any(item.kind == "run.adopted" for item in run.items))
        await it.cancel(await it.locate(left, workspace=space))
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)
    await dead.stop(drain_s=0)


async def test_run_cancelled_during_promotion_is_no_longer_due() -> None:
    disk = MemoryDisk()
    store = MoodyStore(disk)
    it, _ = engine_on(store, SCRIPTS)
    async with it:
        space, thread = await new_thread(store)
        first, second = [await it.create(space, plan("ask", LocalRef("ask")), thread=thread) for _ in range(2)]
        keys = [await it.locate(run_id, workspace=space) for run_id in (first, second)]
        await until(lambda: disk.runs[keys[0]].row.due_at)
        store.log.gate.clear()
        flushes = store.log.flushes
        ending = asyncio.create_task(it.cancel(keys[0]))  # its end, and the promotion with it, wait for the disk
        await until(lambda: store.log.flushes > flushes)
        cancelling = asyncio.create_task(it.cancel(keys[1]))
        await asyncio.sleep(0)
        store.log.gate.set()
        await asyncio.gather(ending, cancelling)
        row = disk.runs[keys[1]].row
        assert (row.status, row.due_at) == ("cancelled", None)


async def test_timer_ringing_during_a_read_of_due_runs_is_kept() -> None:
    disk = MemoryDisk()
    store = MoodyStore(disk)
    it, _ = engine_on(store, SCRIPTS)
    async with it:
        space = await it.workspace("acme")
        log = store.log
        log.holds = "attempt.failed"
        log.gate.clear()
        log.timers_gate.clear()
        asked = log.timers_asked
        creating = asyncio.create_task(it.create(space, plan("retry")))
        await until(lambda: log.timers_asked > asked)  # it rang, and what is due was read: nothing yet
        assert not any(run.row.due_at for run in disk.runs.values())
        log.gate.set()
        run_id = await creating
        (run,) = disk.runs.values()
        await until(lambda: run.row.due_at)  # durable now, and announced while the look above is not over
        for _ in range(20):
            await asyncio.sleep(0)  # until it has rung again
        log.timers_gate.set()
        assert (await ended(it, run_id, space)).status == "succeeded"


async def test_writes_queued_on_a_full_disk_survive_a_stop() -> None:
    disk = MemoryDisk()
    store = MoodyStore(disk)
    began, released = asyncio.Event(), asyncio.Event()

    @tool(effect="once")
    async def pay() -> str:
        """Pays."""
        began.set()
        await released.wait()
        return "paid"

    it, _ = engine_on(store, SCRIPTS, tools={"pay": pay})
    await it.start()
    await it.create(await it.workspace("acme"), plan("pay", ServerRef("pay")))
    await began.wait()
    store.log.refusals = 1
    released.set()
    await until(lambda: not store.log.refusals)
    await it.stop(drain_s=0)
    (run,) = disk.runs.values()
    assert "call.closed" in [item.kind for item in run.items]


async def test_stop_waits_for_store_that_is_slow_but_accepts_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)  # as if the loop had stood still for longer than that
    disk = MemoryDisk()
    store = MoodyStore(disk)
    it, _ = engine_on(store, SCRIPTS)
    await it.start()
    store.log.holds = "turn.completed"
    store.log.gate.clear()
    creating = asyncio.create_task(it.create(await it.workspace("acme"), plan("hello")))
    flushes = store.log.flushes
    await until(lambda: store.log.flushes > flushes)
    stopping = asyncio.create_task(it.stop(drain_s=0))
    for _ in range(20):
        await asyncio.sleep(0)
    store.log.gate.set()
    await stopping
    await creating
    (run,) = disk.runs.values()
    assert "turn.completed" in [item.kind for item in run.items]


async def test_store_that_refuses_holds_up_stop_for_last_try_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)
    disk = MemoryDisk()
    store = MoodyStore(disk)
    it, _ = engine_on(store, SCRIPTS)
    await it.start()
    await it.create(await it.workspace("acme"), plan("slow"))
    (run,) = disk.runs.values()
    await until(lambda: any(item.kind == "delta.text" for item in run.items))
    store.log.refusals = 1_000_000
    await it.stop(drain_s=0)
    assert "attempt.failed" not in [item.kind for item in run.items]


async def test_stalled_loop_time_is_not_charged_to_finishers() -> None:
    loop = asyncio.get_running_loop()
    ahead_s, real = 0.0, loop.time
    answered = asyncio.Event()

    async def stall() -> None:
        nonlocal ahead_s
        ahead_s += 3600.0
        answered.set()

    async def finish() -> None:
        await answered.wait()
        for _ in range(20):
            await asyncio.sleep(0)

    loop.time = lambda: real() + ahead_s
    try:
        finishing = asyncio.create_task(finish())
        stalling = asyncio.create_task(stall())
        assert await wait_while_running([finishing], timeout_s=30.0) == set()
        await stalling
    finally:
        loop.time = real


async def test_killer_is_given_up_with_attempt_that_it_had_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "TRIAL_S", 0.001)
    disk = MemoryDisk()
    dead, _ = engine_on(MoodyStore(disk), SCRIPTS)
    await dead.start()
    space = await dead.workspace("acme")
    run_id = await dead.create(space, plan("slow"))
    (run,) = disk.runs.values()
    await until(lambda: any(item.kind == "delta.text" for item in run.items))
    it, provider = engine_on(MoodyStore(disk), SCRIPTS)  # the other one writes nothing from here on
    run.row.trial_size, run.row.deaths_alone, run.row.deaths = 1, recovery.MAX_RECOVERIES - 1, 5
    run.trial = 1
    async with it:
        heads = await facts(it, run_id, space)
        assert [type(head) for head in heads[-2:]] == [AttemptFailed, RunEnded]
        assert isinstance(heads[-1], RunEnded)
        assert heads[-1].code == "worker_error"
        assert provider.requests == []
        assert isinstance(heads[-2], AttemptFailed)
        assert heads[-2].usage.output == heads[-1].usage.output == 1, "what it had streamed by then is not billed"
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)
    await dead.stop(drain_s=0)


async def test_resumed_suspect_is_on_trial_before_it_is_driven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "TRIAL_S", 0.001)
    disk = MemoryDisk()
    async with engine_on(MoodyStore(disk), SCRIPTS)[0] as before:
        space = await before.workspace("acme")
        run_id = await before.create(space, plan("ask", LocalRef("ask")))
        key = await before.locate(run_id, workspace=space)
        await until(lambda: disk.runs[key].row.due_at)
        await before.pause(key)
        await before.answer(key, "call_0_0", ToolOutput.of("42"))
    run = disk.runs[key]
    run.row.trial_size, run.row.deaths_alone, run.row.deaths = 1, 1, 1
    store = MoodyStore(disk)
    noted: list[list[int]] = []
    begin_trial = store.log.begin_trial

    async def note(keys: list[int]) -> None:
        assert not any(item.kind == "attempt.started" and item.seq > resumed_at for item in run.items)
        noted.append(list(keys))
        await begin_trial(keys)

    store.log.begin_trial = note
    it, _ = engine_on(store, SCRIPTS)
    async with it:
        resumed_at = run.row.next_seq
        await it.resume(key)
        assert (await ended(it, run_id, space)).status == "succeeded"
        assert noted == [[key]]


async def test_repeated_create_finds_its_run_without_tool_and_model() -> None:
    disk = MemoryDisk()
    once = IdempotencyKey("runs", "k", b"digest")
    asked = plan("hello", ServerRef("look"))
    async with engine_on(MoodyStore(disk), SCRIPTS, tools={"look": look})[0] as before:
        space = await before.workspace("acme")
        run_id = await before.create(space, asked, idempotency=once)
        assert (await ended(before, run_id, space)).status == "succeeded"
    async with engine_on(MoodyStore(disk), {})[0] as it:
        assert await it.create(space, asked, idempotency=once) == run_id
        with pytest.raises(InvalidRequest):
            await it.create(space, asked)
        with pytest.raises(InvalidRequest):
            await it.create(space, asked, idempotency=IdempotencyKey("runs", "other", b"digest"))
        with pytest.raises(InvalidRequest):  # the key is free again
            await it.create(space, asked, idempotency=IdempotencyKey("runs", "other", b"digest"))


async def test_due_runs_of_a_newer_version_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "_PAGE", 2)
    disk = MemoryDisk()
    async with engine_on(MoodyStore(disk), SCRIPTS)[0] as before:
        space = await before.workspace("acme")
        for _ in range(5):
            await before.create(space, plan("ask", LocalRef("ask")))
        await until(lambda: len(disk.runs) == 5 and all(run.row.due_at for run in disk.runs.values()))
    for run in disk.runs.values():
        run.row.rules, run.row.due_at = 99, 1
    store = MoodyStore(disk)
    async with engine_on(store, SCRIPTS)[0] as it:
        run_id = await it.create(space, plan("retry"))
        assert (await ended(it, run_id, space)).status == "succeeded"
        asked = store.log.timers_asked
        for _ in range(20):
            await asyncio.sleep(0)
        assert store.log.timers_asked == asked  # nobody looks again and again at what nobody here can move


async def test_resume_during_a_stop_is_executed_by_the_next_process() -> None:
    disk = MemoryDisk()
    late: list[asyncio.Task[Any]] = []

    async def carry_out(command: Any, state: Any, work: Any, services: Any, sink: Any) -> Any:
        await until(lambda: disk.runs)
        (key,) = disk.runs
        await it.pause(key)
        outcome = await carrying.carry_out(command, state, work, services, sink)
        # Both begin before the engine hears that the driver has left: the run waits, since it is paused.
        late.extend([asyncio.create_task(it.resume(key)), asyncio.create_task(it.stop(drain_s=30))])
        return outcome

    @tool(effect="read")
    async def steady() -> str:
        """Answers."""
        return "yes"

    it, _ = engine_on(MoodyStore(disk), SCRIPTS, tools={"steady": steady}, carry_out=carry_out)
    await it.start()
    space = await it.workspace("acme")
    run_id = await it.create(space, plan("hello-twice", ServerRef("steady")))
    await until(lambda: len(late) == 2)
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*late)
    (run,) = disk.runs.values()
    assert run.items[-1].kind == "run.resumed" and run.row.due_at == 0
    async with engine_on(MoodyStore(disk), SCRIPTS, tools={"steady": steady})[0] as after:
        assert (await ended(after, run_id, space)).status == "succeeded"


def _newer_rules(run: MemoryRun) -> None:
    run.row.rules = 99


def _newer_entry(run: MemoryRun) -> None:
    run.items.append(replace(run.items[0], seq=run.row.next_seq, kind="run.teleported"))
    run.row.next_seq += 1


@pytest.mark.parametrize("change", [_newer_rules, _newer_entry])
async def test_run_that_this_version_cannot_load_is_not_on_trial(
    change: Callable[[MemoryRun], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk()
    dead, _ = engine_on(MoodyStore(disk), SCRIPTS)
    await dead.start()
    space = await dead.workspace("acme")
    for _ in range(2):
        await dead.create(space, plan("slow"))
    newer, known = disk.runs.values()
    await until(lambda: all(run.items[-1].kind != "run.created" for run in disk.runs.values()))
    change(newer)
    async with engine_on(MoodyStore(disk), SCRIPTS)[0] as it:  # the other one writes nothing from here on
        await until(lambda: known.trial and not newer.trial)
        assert newer.row.trial_size == 0
        await it.stop(drain_s=0)
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)
    await dead.stop(drain_s=0)


class LateNotes(MoodyStore):
    """Takes its time to record that a run is on trial."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.may_note, self.asked = asyncio.Event(), asyncio.Event()
        begin_trial = self.log.begin_trial

        async def later(keys: Any) -> None:
            self.asked.set()
            await self.may_note.wait()
            await begin_trial(keys)

        self.log.begin_trial = later


async def test_returning_run_is_not_driven_before_its_trial_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, starts = MemoryDisk(), list[int]()
    may_end = asyncio.Event()

    @tool(effect="read")
    async def steady() -> str:
        """Looks, for a while."""
        starts.append(1)
        await may_end.wait()
        return "seen"

    tools = {"steady": steady}
    dead, _ = engine_on(MoodyStore(disk), SCRIPTS, tools=tools)
    await dead.start()
    space = await dead.workspace("acme")
    run_id = await dead.create(space, plan("hello-twice", ServerRef("steady")))
    await until(lambda: starts)
    key = await dead.locate(run_id, workspace=space)
    await dead.pause(key)
    # The next process adopts the call, which stays lost as long as the run is paused.
    between, _ = engine_on(MoodyStore(disk), SCRIPTS, tools=tools)
    async with between:
        await until(lambda: disk.runs[key].row.due_at is None)
    store = LateNotes(disk)
    it, _ = engine_on(store, SCRIPTS, tools=tools)
    async with it:
        before = len(starts)
        await it.resume(key)
        await store.asked.wait()
        await it.steer(key, "Hurry.")
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(starts) == before
        store.may_note.set()
        may_end.set()
        assert (await ended(it, run_id, space)).status == "succeeded"
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)
    await dead.stop(drain_s=0)


async def test_unreadable_run_does_not_keep_others_from_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged page of the file, say. It is tried again beside the others."""
    monkeypatch.setattr(recovery, "STORE_RETRY_S", 0.01)
    disk = MemoryDisk()
    before = await engine_on(MoodyStore(disk), SCRIPTS)[0].start()
    space = await before.workspace("acme")
    run_ids = [await before.create(space, plan("slow")) for _ in range(3)]
    await until(lambda: all(run.row.started_at for run in disk.runs.values()))
    await before.stop(drain_s=0)
    store = MoodyStore(disk)
    store.log.damaged = {1}
    it, _ = engine_on(store, {"slow": {"turns": [{"text": "hi"}]}})
    async with asyncio.timeout(TIMEOUT_S), it:
        for run_id in run_ids[1:]:
            assert (await ended(it, run_id, space)).status == "succeeded"
        store.log.damaged.clear()
        assert (await ended(it, run_ids[0], space)).status == "succeeded"


async def test_unreadable_run_of_an_ended_thread_does_not_block_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = MemoryDisk()
    store = MoodyStore(disk)
    space, thread = await new_thread(store)
    async with engine_on(store, SCRIPTS)[0] as before:
        for _ in range(2):
            await before.create(space, plan("ask", LocalRef("ask")), thread=thread)
        await until(lambda: disk.runs[1].row.due_at)
        await store.records.write(threads.end(thread, now=1))
    disk.died = 1  # and with it whoever was to cancel them
    store = MoodyStore(disk)
    store.log.damaged = {2}
    async with engine_on(store, SCRIPTS)[0]:
        assert [disk.runs[key].row.status for key in (1, 2)] == ["cancelled", "queued"]
    assert "one of its runs is skipped" in caplog.text
