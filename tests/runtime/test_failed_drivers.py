"""A driver that fails leaves nothing behind: the run continues from its log, and the model reads what the log says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pytest
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.server import WallClock
from msgspec.structs import replace

from runtime.kit import TIMEOUT_S, MoodyStore, ended, engine_on, facts, new_thread, plan, until
from weftline.kernel.decide import decide
from weftline.kernel.entries import CallClosed, TimerFired, TurnCompleted
from weftline.kernel.state import Decision, New, RunTool, State
from weftline.messages import Blob, Image, Text, ToolResults, User
from weftline.plan import LocalRef, RunPlan, ServerRef
from weftline.runtime import carry_out as carrying
from weftline.runtime import recovery
from weftline.runtime import step as stepping
from weftline.runtime.conversation import Conversation
from weftline.runtime.fleet import driving
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.step import Step
from weftline.store.memory import MemoryDisk
from weftline.tools.base import ToolOutput
from weftline.tools.decorator import tool

SCRIPTS: dict[str, Any] = {
    "hello": {"turns": [{"text": "hi"}]},
    "look": {"turns": [{"tool_calls": [{"name": "look", "args": {}}] * 2}, {"text": "seen"}]},
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "thanks"}]},
    "both": {"turns": [{"tool_calls": [{"name": name, "args": {}} for name in ("ask", "look")]}, {"text": "seen"}]},
}


@tool(effect="read", concurrent=False)
async def look() -> str:
    """Looks."""
    return "a view"


class Stumbles:
    """A step that raises once, after it has folded a fact of this type."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self.stumbled = False

    def __call__(self, state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
        result = stepping.step(state, work, facts, at=at)
        if not self.stumbled and any(isinstance(draft.head, self._kind) for draft in result.entries):
            self.stumbled = True
            raise RuntimeError("a bug, once")
        return result


async def test_failed_read_while_opening_gives_the_history_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "STORE_RETRY_S", 0.001)
    store = MoodyStore(MemoryDisk())
    it, provider = engine_on(store, SCRIPTS)
    async with it:
        space, thread = await new_thread(store)
        await ended(it, await it.create(space, plan("hello"), thread=thread), space)
        picture = Blob(sha256(b"pixels").hexdigest(), b"pixels")
        asked = User((Text("look"), Image("image/png", blob=picture.id)))
        first = RunPlan(messages=(asked,), model="scripted:hello")
        await ended(it, await it.create(space, first, thread=thread, blobs=[picture]), space)
        store.log.unreadable_blobs = 2
        run_id = await it.create(space, plan("hello"), thread=thread)
        assert (await ended(it, run_id, space)).status == "succeeded"
        assert store.log.unreadable_blobs == 0
        texts = [getattr(message, "text", "") for message in provider.requests[-1].messages]
        assert texts == ["x", "hi", "look", "hi", "x"]


@pytest.mark.parametrize("kind", [TurnCompleted, CallClosed])
async def test_a_step_that_fails_halfway_leaves_nothing_in_the_conversation(kind: type) -> None:
    stumbles = Stumbles(kind)
    it, provider = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, tools={"look": look}, step=stumbles)
    async with it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("look", ServerRef("look")))
        heads = await facts(it, run_id, space)
        assert stumbles.stumbled
        closed = [head.id for head in heads if isinstance(head, CallClosed)]
        results = [message for message in provider.requests[-1].messages if isinstance(message, ToolResults)]
        assert [[one.id for one in message.results] for message in results] == [closed] == [["call_0_0", "call_0_1"]]


async def test_answer_on_its_way_to_disk_survives_driver_failure() -> None:
    store = MoodyStore(MemoryDisk())
    began, fails = asyncio.Event(), asyncio.Event()
    tries = 0

    async def carry_out(command: Any, state: Any, work: Any, services: Any, sink: Any) -> Any:
        nonlocal tries
        if isinstance(command, RunTool) and not tries:
            tries += 1
            began.set()
            await fails.wait()
            raise RuntimeError("a bug, once")
        return await carrying.carry_out(command, state, work, services, sink)

    it, _ = engine_on(store, SCRIPTS, tools={"look": look}, carry_out=carry_out)
    async with it, asyncio.timeout(TIMEOUT_S):
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("both", LocalRef("ask"), ServerRef("look")))
        key = await it.locate(run_id, workspace=space)
        await began.wait()
        store.log.gate.clear()
        flushes = store.log.flushes
        answering = asyncio.create_task(it.answer(key, "call_0_0", ToolOutput.of("42")))
        await until(lambda: store.log.flushes > flushes)
        fails.set()
        for _ in range(20):
            await asyncio.sleep(0)  # until the engine has heard of it
        store.log.gate.set()
        assert await answering
        heads = await facts(it, run_id, space)
        assert sorted(head.id for head in heads if isinstance(head, CallClosed)) == ["call_0_0", "call_0_1"]


async def test_run_whose_drivers_leave_work_is_given_up_with_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise it would be driven again at once, for ever, and nothing else would get a turn."""

    def idle(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
        result = stepping.step(state, work, facts, at=at)
        return Step(result.state, result.entries)

    monkeypatch.setattr(recovery, "RETRY_S", 0.0)
    it, provider = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, step=idle)
    async with it:
        space = await it.workspace("acme")
        end = await ended(it, await it.create(space, plan("hello")), space)
    assert (end.status, end.code, provider.requests) == ("failed", "worker_error", [])
    assert "with work left to do" in caplog.text


def test_kernel_that_does_not_settle_is_driver_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def restless(state: State) -> Decision:
        return Decision((New(TimerFired(state.now + 1)),))

    monkeypatch.setattr(stepping, "decide", restless)
    work = WorkingSet("run_1", plan("hello"), Conversation([]))
    with pytest.raises(RuntimeError, match=f"did not settle after {stepping.MAX_ROUNDS} rounds: TimerFired"):
        stepping.step(State(), work, at=1)


def test_undecidable_run_keeps_no_other_from_its_deadline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def buggy(state: State) -> Decision:
        if state.limits.max_retries == 7 and state.now and not state.broken:
            raise ValueError("a bug")
        return decide(state)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        it, _ = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, clock=WallClock(loop))
        await it.start()
        space = await it.workspace("acme")
        await asyncio.sleep(60)  # clients get a grace after a start
        asking = plan("ask", LocalRef("ask"))
        asking = replace(asking, limits=replace(asking.limits, local_timeout_us=5_000_000))
        odd = replace(asking, limits=replace(asking.limits, max_retries=7))
        run_ids = [await it.create(space, one) for one in (odd, asking)]
        await asyncio.sleep(1)
        monkeypatch.setattr(driving, "decide", buggy)
        monkeypatch.setattr(stepping, "decide", buggy)
        ends = [await ended(it, run_id, space) for run_id in run_ids]
        assert [(end.status, end.code) for end in ends] == [("failed", "worker_error"), ("failed", "local_timeout")]
        await it.stop()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
    assert "cannot continue" in caplog.text


async def test_failure_after_a_commit_affects_no_other_run(caplog: pytest.LogCaptureFixture) -> None:
    it, _ = engine_on(MoodyStore(MemoryDisk()), SCRIPTS)
    async with it, asyncio.timeout(TIMEOUT_S):
        told: list[None] = []

        def fails_once() -> None:
            told.append(None)
            if len(told) == 1:
                raise ValueError("a bug")

        it.watch_ends(fails_once)
        space = await it.workspace("acme")
        run_ids = await asyncio.gather(*[it.create(space, plan("hello")) for _ in range(3)])
        assert [(await ended(it, run_id, space)).status for run_id in run_ids] == ["succeeded"] * 3
    assert len(told) == 3 and "handling a commit failed" in caplog.text
