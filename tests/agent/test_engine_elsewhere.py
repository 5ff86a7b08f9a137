"""An engine, its loop, and everybody else: blocking code, other threads, other loops, forked children."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest

from weftline import Agent, Engine, ToolContext, tool
from weftline.errors import Conflict
from weftline.events import TextDelta
from weftline.messages import Assistant, Text, User
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

T = TypeVar("T")
WAIT_S = 120
who: ContextVar[str] = ContextVar("who", default="nobody")


def catalog(model: ScriptedModel) -> Catalog:
    models = Catalog()
    models.add(model, name="lab")
    return models


@tool
async def where(context: ToolContext) -> str:
    """Which thread this is."""
    return f"{threading.current_thread().name} for {who.get()}"


def in_a_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1, thread_name_prefix="other") as pool:
        return pool.submit(work).result(WAIT_S)


async def beside(work: Callable[[], T]) -> T:
    """Carries out blocking work in another thread, while this loop goes on."""
    return await asyncio.wait_for(asyncio.to_thread(work), WAIT_S)


def test_a_durable_engine_without_async(tmp_path: Path) -> None:
    model = ScriptedModel(['{"value": 7}'])
    agent = Agent("lab:script", name="billing", output=int)
    with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        assert agent.run_sync("Migrate.", engine=engine, key="migrate-1").output == 7
    with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        assert agent.run_sync("Migrate.", engine=engine, key="migrate-1").output == 7
        with agent.stream_sync("Again.", engine=engine, thread="t") as run:
            assert "".join(run.text()) == '{"value": 7}'
            assert run.result().output == 7
    assert len(model.requests) == 2
    with pytest.raises(Conflict, match="not open"):
        agent.run_sync("Late.", engine=engine)


def test_run_of_a_closed_blocking_engine_continues_in_the_next(tmp_path: Path) -> None:
    begun = threading.Event()

    @tool(effect="idempotent", name="pay")
    async def hangs() -> str:
        """Pays."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    model = ScriptedModel([calls("pay"), "Paid."])
    first = Agent("lab:script", name="billing", tools=[hangs])
    with (
        Engine(tmp_path, agents=[first], models=catalog(model), drain_s=0) as engine,
        first.stream_sync("Pay.", engine=engine) as run,
    ):
        assert begun.wait(WAIT_S)

    @tool(effect="idempotent")
    def pay() -> str:
        """Pays."""
        return "done"

    second = Agent("lab:script", name="billing", tools=[pay])
    with Engine(tmp_path, agents=[second], models=catalog(model)) as engine:
        result = asyncio.run(engine.attach(run.id, second).result())
    assert [call.result for call in result.calls] == ["done"]


def test_many_threads_share_one_blocking_engine(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(["{{user_messages}}"]), name="echo")
    with Engine(tmp_path, agents=[agent]) as engine, ThreadPoolExecutor(4) as pool:
        texts = [
            done.result(WAIT_S).text
            for done in [pool.submit(agent.run_sync, f"{number}.", engine=engine) for number in range(12)]
        ]
    assert texts == [f"{number}." for number in range(12)]


async def test_blocking_calls_of_other_threads_use_the_engines_loop(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel([calls("where"), "{{tool_results.0}}"]), name="a", tools=[where])

    def other() -> str:
        who.set("Ann")
        return agent.run_sync("Where?", engine=engine).text

    async with Engine(tmp_path, agents=[agent]) as engine:
        assert await beside(lambda: in_a_thread(other)) == f"{threading.current_thread().name} for Ann"


async def test_another_loop_can_start_watch_steer_and_cancel(tmp_path: Path) -> None:
    model = ScriptedModel([{"deltas": ["Hel", "lo."]}])
    agent = Agent("lab:script", name="a")

    async def elsewhere() -> None:
        async with agent.stream("Hi.", engine=engine, thread="shared") as run:
            deltas = [event.text async for event in run if isinstance(event, TextDelta)]
            assert deltas == ["Hel", "lo."]
            assert (await run.result()).text == "Hello."
            assert (await run.cancel()).status == "succeeded"
        assert await engine.thread("shared").messages() == [User.of("Hi."), Assistant((Text("Hello."),))]
        assert await engine.unclaimed() == []
        assert (await engine.attach(run.id).result()).text == "Hello."

    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        await beside(lambda: asyncio.run(elsewhere()))
        assert [message async for message in engine.attach((await engine.start(agent, "Hi.")).id).text()] == [
            "Hel",
            "lo.",
        ]


async def test_a_call_that_is_cancelled_elsewhere_stops_only_the_waiting(tmp_path: Path) -> None:
    begun, go_on, there = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await go_on.wait()
        return "waited"

    agent = Agent(ScriptedModel([calls("wait"), "{{tool_results.0}}"]), name="a", tools=[wait])

    async def impatient() -> str:
        run = await engine.start(agent, "Go.")
        waiting = asyncio.create_task(run.result())
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begun.wait(), there))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return run.id

    async with Engine(tmp_path, agents=[agent]) as engine:
        run_id = await beside(lambda: asyncio.run(impatient()))
        go_on.set()
        assert (await engine.attach(run_id).result()).text == "waited"


async def test_run_in_memory_is_ended_from_another_loop() -> None:
    begun, ended, there = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    agent = Agent(ScriptedModel([calls("wait"), "Never."]), tools=[wait])

    async def owner() -> None:
        async with agent.stream("Go.", engine=engine):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begun.wait(), there))

    async with Engine() as engine:
        await beside(lambda: asyncio.run(owner()))
        assert ended.is_set()


async def test_engine_is_closed_on_its_own_loop_whoever_closes_it(tmp_path: Path) -> None:
    engine = await Engine(tmp_path).__aenter__()
    await beside(lambda: asyncio.run(engine.close()))
    assert not engine.is_open
    await engine.close()


def test_an_engine_whose_loop_has_ended_says_so(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(["Hi."]), name="a")

    async def opened() -> Engine:
        return await Engine(agents=[agent]).__aenter__()

    engine = asyncio.run(opened())
    with pytest.raises(Conflict, match="closed"):
        agent.run_sync("Hi.", engine=engine)
    # Nobody can close it any more.
    forgotten = [engine]
    del engine

    def forget() -> None:
        forgotten.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="never closed"):
        forget()


def test_a_blocking_engine_in_a_running_loop_is_refused(tmp_path: Path) -> None:
    async def inside() -> None:
        with Engine(tmp_path):
            pass

    with pytest.raises(RuntimeError, match="await the async call"):
        asyncio.run(inside())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_leaves_its_parents_engine_alone(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(["Hi."]), name="a")
    with Engine(tmp_path / "parent", agents=[agent]) as engine:
        assert agent.run_sync("Hi.", engine=engine).text == "Hi."
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(Conflict, match="forked"):
                    agent.run_sync("Hi.", engine=engine)
                engine.__exit__(None, None, None)
                with Engine(tmp_path / "child", agents=[agent]) as own:
                    code = 0 if agent.run_sync("Hi.", engine=own).text == "Hi." else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert agent.run_sync("Hi again.", engine=engine).text == "Hi."


async def test_notebook_does_not_wait_for_engine_on_its_own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    agent = Agent(ScriptedModel(["Hi."]), name="a")
    async with Engine(agents=[agent]) as engine:
        with pytest.raises(RuntimeError, match="await"):
            agent.run_sync("Hi.", engine=engine)
        with pytest.raises(RuntimeError, match="await"), agent.stream_sync("Hi.", engine=engine):
            pass
        assert agent.run_sync("Hi.").text == "Hi.", "without the engine a cell may block"
