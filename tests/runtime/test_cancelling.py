"""Cancel: durable before anything stops, in whatever state the run is, and in time whatever its tools do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from runtime import kit
from runtime.kit import MoodyStore, ended, engine_on, facts, new_thread, plan
from weftline import tool
from weftline.errors import Conflict, RateLimited, StoreError, Unavailable
from weftline.kernel.entries import (
    KIND,
    AttemptStarted,
    AwaitClosed,
    AwaitOpened,
    CallClosed,
    CallOpened,
    CallStarted,
    CancelRequested,
    RunEnded,
    decode_fact,
)
from weftline.kernel.policy import BudgetRule
from weftline.messages import Assistant, ToolResults
from weftline.plan import LocalRef, RunPlan, ServerRef
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet import driving, fleet
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.runtime.reads.calls import CancelReceipt
from weftline.store.memory import MemoryDisk
from weftline.store.rows import AwaitFilter
from weftline.testing.budgets import all_use, unlike
from weftline.testing.engine import World
from weftline.tools.base import Tool, ToolContext, ToolOutput


def calls(*names: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "args": {}} for name in names]}


SCRIPTS: dict[str, Any] = {
    "hold": {"turns": [calls("hold", "note"), {"text": "done"}]},
    "peek": {"turns": [calls("peek"), {"text": "done"}]},
    "stubborn": {"turns": [calls("stubborn"), {"text": "done"}]},
    "both": {"turns": [calls("stubborn", "ask"), {"text": "done"}]},
    "ask": {"turns": [calls("ask"), {"text": "done"}]},
    "mixed": {"turns": [calls("pay", "ask"), {"text": "done"}]},
    "hello": {"turns": [{"text": "hello"}]},
    "slow": {"turns": [{"deltas": ["a", "b"], "delay_ms": 600_000}]},
}
REFS = (LocalRef("ask"), *(ServerRef(name) for name in ("hold", "note", "peek", "pay", "stubborn")))


class Place:
    """An engine with tools that wait, and what they saw."""

    def __init__(self, disk: MemoryDisk | None = None, *, limits: WorkspaceLimits | None = None) -> None:
        self.store = MoodyStore(disk or MemoryDisk())
        self.began, self.let_go = asyncio.Event(), asyncio.Event()
        self.stopped: list[bool] = []
        """Of each tool that was cancelled: whether the log was past its gate by then."""
        self.noted = self.notes_left = 0

        @tool
        async def hold() -> str:
            """Waits until it is cancelled."""
            return await self._wait()

        @tool(effect="read")
        async def peek() -> str:
            """The same, and only reads."""
            return await self._wait()

        @tool
        async def stubborn(context: ToolContext) -> str:
            """Does not stop when it is told to, and has something to say after that."""
            self.began.set()
            while not self.let_go.is_set():
                try:
                    await self.let_go.wait()
                except asyncio.CancelledError:
                    self.stopped.append(self.store.log.gate.is_set())
            context.emit("late", {})
            self.notes_left += 1
            return "late"

        @tool
        async def note() -> str:
            """Comes after the others."""
            self.noted += 1
            return "noted"

        @tool(confirm="Pay?")
        async def pay() -> str:
            """Needs a person."""
            return "paid"

        tools: list[Tool] = [hold, peek, stubborn, note, pay]
        by_name = {one.spec.name: one for one in tools}
        self.engine, self.provider = engine_on(self.store, SCRIPTS, tools=by_name, limits=limits)

    async def _wait(self) -> str:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.stopped.append(self.store.log.gate.is_set())
            raise
        return ""

    async def start(self, model: str, **options: Any) -> tuple[int, str, int]:
        space = await self.engine.workspace("acme")
        run = await self.engine.create(space, planned(model), **options)
        return await self.engine.locate(run, workspace=space), run, space


def planned(model: str) -> RunPlan:
    return plan(model, *REFS)


@pytest.mark.requirement("run.cancel.reason")
@pytest.mark.parametrize(("reason", "by"), [("user", "key:ann"), ("engine", "")])
async def test_why_and_by_whom_is_durable_before_anything_is_stopped(reason: str, by: str) -> None:
    place = Place()
    async with place.engine:
        key, run, space = await place.start("hold")
        await place.began.wait()
        place.store.log.gate.clear()
        driving = asyncio.ensure_future(place.engine.cancel(key, reason=reason, requested_by=by))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not place.stopped, "the tool was stopped before anybody could know why"
        place.store.log.gate.set()
        assert (await driving).status == "cancelled"
        assert place.stopped == [True]
        found = await facts(place.engine, run, space)
    (asked,) = [one for one in found if isinstance(one, CancelRequested)]
    end = found[-1]
    assert isinstance(end, RunEnded)
    assert (asked.reason, asked.requested_by) == (end.reason, end.requested_by) == (reason, by)


@pytest.mark.requirement("run.cancel.reason")
async def test_end_of_session_is_reason_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    async with place.engine:
        _, thread = await new_thread(place.store)
        _, run, space = await place.start("ask", thread=thread)
        await place.engine.end_thread(thread, requested_by="key:ann")
        end = await ended(place.engine, run, space)
    assert (end.status, end.reason, end.requested_by) == ("cancelled", "thread_ended", "key:ann")


async def until(engine: EmbeddedEngine, key: int, run: str, kind: type) -> None:
    follower = engine.follow(key, run)
    async with asyncio.timeout(60):
        while (batches := await follower.next()) is not None:
            if any(isinstance(head, kind) for batch in batches for head in batch.heads or ()):
                break
    follower.close()


@pytest.mark.requirement("run.cancel.level")
@pytest.mark.parametrize("model", ["slow", "hold", "ask"])
async def test_nothing_begins_after_a_cancel_wherever_the_run_is(model: str) -> None:
    """In a model call, inside a batch with more to come, parked; and before it could begin, behind another one."""
    place = Place()
    async with place.engine:
        _, thread = await new_thread(place.store)
        key, run, space = await place.start(model, thread=thread)
        behind, queued, _ = await place.start("hold", thread=thread)
        await (place.began.wait() if model == "hold" else until(place.engine, key, run, AttemptStarted))
        for one in (behind, key):
            assert (await place.engine.cancel(one)).status == "cancelled"
        asked = len(place.provider.requests)
        found = [await facts(place.engine, one, space) for one in (run, queued)]
        assert (len(place.provider.requests), place.noted) == (asked, 0)
    for heads in found:
        after = heads[[type(head) for head in heads].index(CancelRequested) :]
        assert not [head for head in after if isinstance(head, AttemptStarted | CallStarted)]
        assert isinstance(after[-1], RunEnded) and after[-1].status == "cancelled"


async def test_cancel_overtaken_by_a_stop_finishes_in_the_next_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "CUT_S", 0.01)
    monkeypatch.setattr(driving, "CANCEL_GRACE_S", 3600)
    disk = MemoryDisk()
    place = Place(disk)
    await place.engine.start()
    key, run, space = await place.start("stubborn")
    await place.began.wait()
    asked = asyncio.ensure_future(place.engine.cancel(key))
    await until(place.engine, key, run, CancelRequested)
    await place.engine.drain(0)
    await place.engine.abort()
    await asyncio.wait([asked], timeout=60)
    place.let_go.set()
    with pytest.raises(Unavailable, match="The cancellation is recorded"):
        asked.result()
    await place.store.close()
    place = Place(disk)
    async with place.engine:
        assert (await ended(place.engine, run, space)).status == "cancelled"


@pytest.mark.requirement("run.cancel.level")
async def test_recorded_cancel_survives_the_death_of_the_process() -> None:
    disk = MemoryDisk()
    place = Place(disk)
    await place.engine.start()
    key, run, space = await place.start("stubborn")
    await place.began.wait()
    driving = asyncio.ensure_future(place.engine.cancel(key, requested_by="key:ann"))
    await until(place.engine, key, run, CancelRequested)
    place.store.log.refusals = 1_000_000  # nothing more is written by this process
    place.let_go.set()
    await asyncio.wait([driving], timeout=0.2)
    driving.cancel()
    await asyncio.wait([driving])
    after = Place(disk)
    async with after.engine:
        end = await ended(after.engine, run, space)
        assert (end.status, end.requested_by) == ("cancelled", "key:ann")
        assert not after.began.is_set() and not after.provider.requests
        receipt = await after.engine.cancel(key)
        assert [call.name for call in receipt.in_doubt] == ["stubborn"]


@pytest.mark.requirement("run.cancel.uncooperative")
async def test_unstoppable_tool_delays_the_end_by_the_grace_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert driving.CANCEL_GRACE_S == 2.0
    monkeypatch.setattr("weftline.runtime.fleet.driving.CANCEL_GRACE_S", 0.05)
    place = Place()
    async with place.engine:
        key, run, space = await place.start("stubborn")
        await place.began.wait()
        receipt = await place.engine.cancel(key)
        assert [call.name for call in receipt.in_doubt] == ["stubborn"] and not receipt.finished
        before = await facts(place.engine, run, space)
        place.let_go.set()
        for _ in range(50):
            await asyncio.sleep(0)
        assert await facts(place.engine, run, space) == before, "its late result has changed something"
        assert [one.how for one in before if isinstance(one, CallClosed)] == ["in_doubt"]
        place.began.clear()
        key, *_ = await place.start("peek")
        await place.began.wait()
        assert _named(await place.engine.cancel(key)) == {"stopped": ["peek"], "finished": [], "in_doubt": []}


@pytest.mark.requirement("run.cancel.closes")
async def test_cancel_closes_calls_awaits_leases_timers_and_reservations() -> None:
    place = Place()
    async with place.engine:
        engine = place.engine
        _, thread = await new_thread(place.store)
        space = await engine.workspace("acme")
        limits = replace(planned("mixed").limits, budget=BudgetRule(calls=10), await_timeout_us=3_600_000_000)
        run = await engine.create(space, replace(planned("mixed"), limits=limits), thread=thread)
        key = await engine.locate(run, workspace=space)
        await until(engine, key, run, AwaitOpened)
        (asked,) = await engine.stored.awaits(AwaitFilter(workspace=space))
        (call,) = [head.id for head in await so_far(engine, key) if isinstance(head, CallOpened)]
        lease = await engine.claim(key, call)
        reserved = [use.held_calls for use in await place.store.records.read(all_use())]
        assert any(reserved) and (await engine.stored.row(key)).due_at is not None  # type: ignore[union-attr]
        receipt = await engine.cancel(key)
        assert [one.id for one in receipt.in_doubt] == [call]

        assert await engine.stored.awaits(AwaitFilter(workspace=space)) == []
        row = await engine.stored.row(key)
        assert row is not None and row.due_at is None
        assert not any(use.held_calls for use in await place.store.records.read(all_use()))
        assert await unlike(place.store.log, place.store.records) == []
        found = await facts(engine, run, space)
        assert [head.outcome for head in found if isinstance(head, AwaitClosed)] == ["withdrawn"]
        closed = [head.index for head in found if isinstance(head, CallClosed)]
        assert sorted(closed) == [0, 1], "each call has one result"

        yes, late = AwaitAnswer(outcome="approved"), ToolOutput.of("42")
        for one in (
            engine.answer_await(key, asked.id, yes, by="user:ann", person_of=as_named),
            engine.answer(key, call, late, token=lease.token),
            engine.heartbeat(key, call, lease.token),
            engine.release(key, call, lease.token),
            engine.claim(key, call),
        ):
            with pytest.raises(Conflict) as refused:
                await one
            assert refused.value.code in ("await_closed", "run_terminal")
        assert await facts(engine, run, space) == found

        after = await engine.create(space, planned("hello"), thread=thread)
        assert (await ended(engine, after, space)).status == "succeeded"
        said = place.provider.requests[-1].messages
        made = [one.id for message in said if isinstance(message, Assistant) for one in message.calls]
        got = [one.id for message in said if isinstance(message, ToolResults) for one in message.results]
        assert made == got


async def so_far(engine: EmbeddedEngine, key: int) -> list[Any]:
    return [decode_fact.decode(fact.head) for fact in await engine.stored.logs.facts(key)]


def _named(receipt: CancelReceipt) -> dict[str, list[str]]:
    lists = {"stopped": receipt.stopped, "finished": receipt.finished, "in_doubt": receipt.in_doubt}
    return {name: [call.name for call in named] for name, named in lists.items()}


async def test_a_cancel_leaves_nothing_open_and_late_answers_are_refused() -> None:
    place = Place()
    async with place.engine:
        space, thread = await new_thread(place.store)
        key, run, _ = await place.start("mixed", thread=thread)
        await until(place.engine, key, run, AwaitOpened)
        (question,) = await place.engine.stored.awaits(AwaitFilter(workspace=space))
        lease = await place.engine.claim(key, "call_0_1")
        await place.engine.cancel(key)
        assert await place.engine.stored.awaits(AwaitFilter(workspace=space)) == []
        row = await place.engine.stored.row(key)
        assert row is not None and row.due_at is None, "a timer is left"
        late = (
            place.engine.answer(key, "call_0_1", ToolOutput.of("x"), token=lease.token),
            place.engine.heartbeat(key, "call_0_1", lease.token),
            place.engine.answer_await(
                key, question.id, AwaitAnswer(outcome="approved"), by="key:ann", person_of=as_named
            ),
        )
        for answer in late:
            with pytest.raises(Conflict) as refused:
                await answer
            assert refused.value.code in ("run_terminal", "await_closed")
        found = await facts(place.engine, run, space)
        assert sorted(one.id for one in found if isinstance(one, CallClosed)) == ["call_0_0", "call_0_1"]
        _, following, _ = await place.start("hello", thread=thread)
        assert (await ended(place.engine, following, space)).status == "succeeded"
    asked = place.provider.requests[-1].messages
    made = [call.id for message in asked if isinstance(message, Assistant) for call in message.calls]
    got = [result.id for message in asked if isinstance(message, ToolResults) for result in message.results]
    assert made == got


async def test_run_can_be_cancelled_despite_many_open_streams() -> None:
    place = Place(limits=WorkspaceLimits(max_streams_per_workspace=1))
    async with place.engine as it:
        key, run, space = await place.start("hold")
        await place.began.wait()
        watching = it.follow(key, run, workspace=space)
        with pytest.raises(RateLimited):
            it.follow(key, run, workspace=space)
        assert (await it.cancel(key)).status == "cancelled"
        watching.close()


async def test_ended_run_gets_nothing_although_its_tool_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weftline.runtime.fleet.driving.CANCEL_GRACE_S", 0.001)
    place = Place()
    async with place.engine as it:
        key, run, space = await place.start("stubborn")
        await place.began.wait()
        await it.cancel(key)
        place.let_go.set()
        await kit.until(lambda: place.notes_left)
        last = (await facts(it, run, space))[-1]
        row = await it.stored.row(key)
        assert isinstance(last, RunEnded) and row is not None
        assert isinstance(decode_fact.decode((await place.store.log.entry(key, row.next_seq - 1)).head), RunEnded)


async def test_answer_that_comes_while_cancel_takes_its_time_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weftline.runtime.fleet.driving.CANCEL_GRACE_S", 0.05)
    place = Place()
    async with place.engine as it:
        key, run, space = await place.start("both")
        await place.began.wait()
        driving = asyncio.create_task(it.cancel(key))
        await kit.until(lambda: place.stopped)
        assert not await it.answer(key, "call_0_1", ToolOutput.of("42"))
        await driving
        place.let_go.set()
        closed = [head for head in await facts(it, run, space) if isinstance(head, CallClosed)]
        assert [(head.name, head.how) for head in closed] == [("stubborn", "in_doubt"), ("ask", "cancelled")]


class Held:
    """A run whose tool lasts until it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = asyncio.Event(), asyncio.Event()
        self.calls = 0

        @tool(effect="once")
        async def work() -> str:
            """Works until it is let go."""
            self.calls += 1
            self.begun.set()
            await self.let_go.wait()
            return "worked"

        self.store = MoodyStore(MemoryDisk())
        turns: list[dict[str, Any]] = [{"tool_calls": [{"name": "work", "args": {}}]}, {"text": "done"}]
        self.engine, _ = engine_on(self.store, {"work": {"turns": turns}}, tools={"work": work})

    async def start(self) -> tuple[int, str, int]:
        space = await self.engine.workspace("acme")
        run = await self.engine.create(space, plan("work", ServerRef("work")))
        await self.begun.wait()
        return await self.engine.locate(run, workspace=space), run, space


async def test_failed_cancel_write_fails_only_for_its_sender(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = Held()
    async with held.engine as engine:
        key, run, space = await held.start()
        held.store.log.failures = 1
        with pytest.raises(StoreError):
            await engine.cancel(key)
        end = await ended(engine, run, space)  # it continues from a log in which nobody has cancelled it
        assert end.status == "succeeded"
        assert "a background task failed" not in caplog.text


@pytest.mark.parametrize("ask", ["steer", "pause", "cancel"])
async def test_request_refused_by_a_full_disk_costs_no_work(ask: str) -> None:
    held = Held()
    async with held.engine as engine:
        key, run, space = await held.start()
        held.store.log.refusals = 2
        asked = asyncio.ensure_future(getattr(engine, ask)(key, *(["Hurry."] if ask == "steer" else [])))
        await kit.until(lambda: held.store.log.refusals == 1)
        if ask != "cancel":
            held.let_go.set()
        await asked  # once the disk has space again
        if ask == "pause":
            await engine.resume(key)
        end = await ended(engine, run, space)
        assert end.status == ("cancelled" if ask == "cancel" else "succeeded")
        closed = [head.how for head in await facts(engine, run, space) if isinstance(head, CallClosed)]
        assert (held.calls, closed) == (1, ["in_doubt" if ask == "cancel" else "returned"])


async def test_request_refused_by_a_full_disk_is_answered_before_stopping() -> None:
    held = Held()
    await held.engine.start()
    key, _, _ = await held.start()
    held.store.log.refusals = 1_000_000
    asked = asyncio.ensure_future(held.engine.steer(key, "Hurry."))
    await kit.until(lambda: held.store.log.refusals < 1_000_000)
    held.let_go.set()
    await held.engine.stop(drain_s=0)
    with pytest.raises(Unavailable):
        await asked


async def test_undurable_end_is_not_reported_to_those_who_wait() -> None:
    store = MoodyStore(MemoryDisk())
    log, began, let_go = store.log, asyncio.Event(), asyncio.Event()

    @tool
    async def talk(context: ToolContext) -> str:
        """Says something when it is stopped, and takes its time."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.gate.clear()
            context.emit("late", {})
            await let_go.wait()
        return ""

    scripts: dict[str, Any] = {"talk": {"turns": [calls("talk"), {"text": "done"}]}}
    engine, _ = engine_on(store, scripts, tools={"talk": talk})
    async with engine:
        space = await engine.workspace("acme")
        key = await engine.locate(await engine.create(space, plan("talk", ServerRef("talk"))), workspace=space)
        await began.wait()
        driving = asyncio.ensure_future(engine.cancel(key))
        await kit.until(lambda: log.waited == 1)
        yes = AwaitAnswer(outcome="approved")
        late = (
            engine.steer(key, "Wait."),
            engine.answer_await(key, "await_0", yes, by="user:ann", person_of=as_named),
            engine.answer(key, "call_0_0", ToolOutput.of("x")),
        )
        refused = [asyncio.ensure_future(one) for one in late]
        await turns()
        let_go.set()
        await turns()
        log.holds = KIND[RunEnded]
        log.gate.set()
        log.gate.clear()
        await kit.until(lambda: log.waited == 2)
        await turns()
        told = [one.done() for one in refused]
        log.gate.set()
        assert told == [False] * 3, "a crash could undo the end"
        for one in refused:
            with pytest.raises(Conflict):
                await one
        assert (await driving).status == "cancelled"


async def test_edit_of_a_call_whose_run_ends_is_reported() -> None:
    world = World()
    store = MoodyStore(MemoryDisk())
    async with EmbeddedEngine(store, models=world.models(), tools=world.tools()) as engine:
        space = await engine.workspace("acme")
        run = await engine.create(space, plan("refund", ServerRef("refund")))
        key = await engine.locate(run, workspace=space)
        await until(engine, key, run, AwaitOpened)
        [asked] = await engine.stored.awaits(AwaitFilter(workspace=space))
    async with EmbeddedEngine(MoodyStore(store.disk), models=world.models(), tools=world.tools()) as engine:
        world.opens.clear()
        edit = AwaitAnswer(outcome="approved", args={"n": 2})
        editing = asyncio.ensure_future(engine.answer_await(key, asked.id, edit, by="user:ann", person_of=as_named))
        await turns()
        assert (await engine.cancel(key)).status == "cancelled"
        world.opens.set()
        with pytest.raises(Conflict) as refused:
            await editing
        assert refused.value.code == "await_closed"


async def turns() -> None:
    """Everybody has had their turn."""
    for _ in range(50):
        await asyncio.sleep(0)
