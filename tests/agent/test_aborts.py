"""Runs that are stopped, and runs that fail: what their callers get, and what they leave behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from agent.kit import workspace_of
from weftline import Agent, Engine, Limits, RunCancelled, RunFailed, tool
from weftline.hooks import RunCancelled as RunCancelledPoint
from weftline.hooks import RunEnded
from weftline.messages import Assistant, Usage, User
from weftline.providers.base import Chunk, ModelRequest, ProviderError, TextDelta
from weftline.runs import ContextExceeded, ProviderFailed
from weftline.testing import ScriptedModel, calls

from .kit import results_in

PATIENCE_S = 60.0


class Waiting:
    """A tool that waits for ever."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.stopped = 0

        @tool(effect="read", concurrent=False)
        async def wait() -> str:
            """Waits."""
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped += 1
            return ""

        self.tool = wait


class Sulking(ScriptedModel):
    """Begins to answer, and calls it a failure of its own if it is cut off."""

    def __init__(self) -> None:
        super().__init__(["never"])
        self.answering = asyncio.Event()
        self.stopped = False

    async def _sulks(self) -> AsyncIterator[Sequence[Chunk]]:
        yield [TextDelta("So f")]
        self.answering.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.stopped = True
            raise ProviderError("server", "It was not me.") from None

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        self.requests.append(request)
        return self._sulks()


@pytest.mark.requirement("loop.abort.result", "loop.abort.at_once")
async def test_cancelled_run_returns_a_result_for_every_call() -> None:
    waiting = Waiting()
    first = {**calls(("wait", {}), ("wait", {})), "usage": {"input": 7, "output": 2}}
    agent = Agent(ScriptedModel([first, "Done."]), tools=[waiting.tool])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.")
        await waiting.begun.wait()
        await run.cancel()
        result = await run.result()
    assert (result.status, result.turns, result.usage) == ("cancelled", 1, Usage(input=7, output=2))
    assert result.elapsed_ms >= 0
    assert waiting.stopped == 1, "the second never began"
    assert [text[:9] for text in results_in(result.messages)] == ["Aborted: ", "Aborted: "]
    with pytest.raises(RunCancelled):
        result.raise_for_status()
    (await Agent(ScriptedModel(["Done."])).run("Go.")).raise_for_status()


@pytest.mark.requirement("loop.abort.result", "loop.abort.at_once")
async def test_model_call_is_stopped_whatever_its_provider_says_about_that() -> None:
    model = Sulking()
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(Agent(model), "Go.")
        await model.answering.wait()
        await run.cancel()
        result = await run.result()
    assert (result.status, result.code) == ("cancelled", "")
    assert model.stopped


@pytest.mark.requirement("loop.abort.at_once")
async def test_run_that_is_cancelled_before_it_begins_asks_no_model() -> None:
    model = ScriptedModel(["Never."])
    task = asyncio.create_task(Agent(model).run("Go."))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.requests == []


@pytest.mark.requirement("loop.abort.task_cancelled")
async def test_cancelling_awaiting_task_ends_run_and_agent_can_run_again() -> None:
    waiting = Waiting()
    agent = Agent(ScriptedModel([calls("wait"), "Done."]), tools=[waiting.tool])
    seen: list[str] = []
    agent.on(RunCancelledPoint)(lambda at: seen.append(at.name))
    agent.on(RunEnded)(lambda at: seen.append(f"{at.name}: {at.status}"))
    async with asyncio.timeout(PATIENCE_S):
        task = asyncio.create_task(agent.run("Go."))
        await waiting.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert waiting.stopped == 1
        assert seen == ["run_cancelled", "run_ended: cancelled"]
        with agent.override(model=ScriptedModel(["Still here."])):
            assert (await agent.run("Go.")).text == "Still here."


class Refusing(ScriptedModel):
    def __init__(self, error: Exception) -> None:
        super().__init__(["never"])
        self.error = error

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        raise self.error
        yield []


@pytest.mark.requirement("loop.error.typed")
@pytest.mark.parametrize(
    ("raised", "kind", "code", "provider_code", "retryable"),
    [
        (ProviderError("context_window", "no"), ContextExceeded, "context_window", None, False),
        (ProviderError("overloaded", "no", code="busy"), ProviderFailed, "overloaded", "busy", True),
        (OSError("no such device"), ProviderFailed, "unknown", None, False),
    ],
)
async def test_failed_model_call_is_raised_by_class_with_its_cause(
    raised: Exception, kind: type[ProviderFailed], code: str, provider_code: str | None, retryable: bool
) -> None:
    with pytest.raises(ProviderFailed) as caught:
        await Agent(Refusing(raised), limits=Limits(max_retries=0)).run("Go.")
    error = caught.value
    assert type(error) is kind
    assert (error.code, error.provider, error.provider_code) == (code, "scripted", provider_code)
    assert error.retryable is retryable
    cause = error.__cause__
    assert isinstance(cause, ProviderError)
    assert raised in (cause, cause.__cause__)


@pytest.mark.requirement("loop.error.thread_intact")
async def test_thread_keeps_finished_turns_of_a_failed_run() -> None:
    @tool
    def look() -> str:
        """Looks."""
        return "seen"

    agent = Agent(ScriptedModel(["One."]), tools=[look])
    failing = ScriptedModel([calls("look"), {"error": {"class": "auth", "message": "no"}}])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        await agent.run("First?", thread="t", engine=engine)
        with pytest.raises(RunFailed) as caught, agent.override(model=failing):
            await agent.run("Second?", thread="t", engine=engine)
        failed = caught.value.result
        row = await (await engine.runtime()).stored.find(failed.run_id, workspace=await workspace_of(engine))
        assert (failed.status, row.status) == ("failed", "failed")
        assert [type(message).__name__ for message in failed.new_messages] == ["User", "Assistant", "ToolResults"]
        again = await agent.run("Third?", thread="t", engine=engine)
        stored = await engine.thread("t").messages()
    said = [message.text for message in stored if isinstance(message, User | Assistant)]
    assert said == ["First?", "One.", "Second?", "", "Third?", "One."]
    kinds = [type(message).__name__ for message in stored]
    assert kinds == ["User", "Assistant", "User", "Assistant", "ToolResults", "User", "Assistant"]
    assert again.text == "One."


async def test_leaving_run_waits_for_plain_function_that_is_at_work() -> None:
    begun, go_on, done = asyncio.Event(), threading.Event(), list[str]()
    loop = asyncio.get_running_loop()

    @tool
    def pay() -> str:
        """Pays."""
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(PATIENCE_S)
        done.append("paid")
        return "Paid."

    agent = Agent(ScriptedModel([calls("pay"), "Done."]), tools=[pay])
    async with asyncio.timeout(PATIENCE_S), Engine(drain_s=PATIENCE_S) as engine:
        run = asyncio.create_task(agent.run("Pay.", engine=engine))
        await begun.wait()
        run.cancel()
        await asyncio.wait([run], timeout=0.01)
        assert not run.done(), "it waits for the function"
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert done == ["paid"]


async def test_ended_run_does_not_wait_for_a_slow_function() -> None:
    go_on = threading.Event()

    @tool(effect="read", timeout_s=0.01)
    def stuck() -> str:
        """Does not return."""
        go_on.wait(PATIENCE_S)
        return "late"

    agent = Agent(ScriptedModel([calls("stuck"), "Done."]), tools=[stuck])
    try:
        async with asyncio.timeout(PATIENCE_S / 2):
            async with Engine(drain_s=PATIENCE_S) as engine:
                assert (await agent.run("Go.", engine=engine)).text == "Done."
    finally:
        go_on.set()
