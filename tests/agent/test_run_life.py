"""A run in a script from its start to its end: who owns it, who closes what it used, what is left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from agent.kit import asked, workspace_of
from weftline import Agent, Engine, Limits, RunCancelled, RunContext, RunFailed, tool
from weftline.agent.engine.in_memory import in_memory
from weftline.agent.running import deps as deps_of_runs
from weftline.hooks import RunEnded, ToolGate
from weftline.runs import AgentFailed, RunInfo
from weftline.runtime.fleet import holding
from weftline.store.rows import RunFilter
from weftline.testing import ScriptedModel, calls

PAY: dict[str, Any] = {"tool_calls": [{"name": "pay", "args": {"amount": 5}}]}


@tool(effect="read", concurrent=True)
def look(at: str = "") -> str:
    """Looks."""
    return f"{at}: seen"


async def unfinished(engine: Engine) -> int:
    host = await engine.runtime()
    statuses = ("queued", "running", "paused")
    return len(await host.stored.logs.runs(RunFilter(workspace=await workspace_of(engine), statuses=statuses)))


async def test_a_start_that_is_cancelled_leaves_no_run_behind() -> None:
    never = asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        await never.wait()
        return "never"

    engine = await in_memory()
    for steps in range(25):
        task = asyncio.create_task(Agent(ScriptedModel([calls("wait"), "Done."]), tools=[wait]).run("Go."))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await unfinished(engine) == 0, steps
    assert engine.agents == {}


async def test_start_cancelled_on_another_loop_leaves_no_run() -> None:
    never = asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        await never.wait()
        return "never"

    async def elsewhere(steps: int) -> None:
        agent = Agent(ScriptedModel([calls("wait"), "Done."]), tools=[wait])
        task = asyncio.create_task(engine.start(agent, "Go."))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():  # it was quicker
            await task.result().cancel()

    async with Engine() as engine:
        for steps in range(8):
            await asyncio.to_thread(asyncio.run, elsewhere(steps))
            assert await unfinished(engine) == 0, steps


async def test_a_start_that_is_refused_leaves_nothing_behind() -> None:
    engine = await in_memory()
    with pytest.raises(Exception, match="needs a prompt"):
        await Agent(ScriptedModel(["x"])).run()
    with pytest.raises(Exception, match="no-such"):
        await Agent("no-such:model").run("Go.")
    assert engine.agents == {}


VARIABLE: ContextVar[str] = ContextVar("variable", default="outside")


async def test_deps_are_entered_and_left_in_one_task() -> None:
    tasks: list[object] = []

    @asynccontextmanager
    async def scoped(run: RunInfo) -> AsyncGenerator[str]:
        tasks.append(asyncio.current_task())
        token = VARIABLE.set("inside")
        async with asyncio.TaskGroup(), asyncio.timeout(60):
            yield "acme"
        VARIABLE.reset(token)  # raises in another context
        tasks.append(asyncio.current_task())

    result = await Agent(ScriptedModel([calls("look"), "Done."]), deps=scoped, tools=[look]).run("Go.")
    assert result.text == "Done."
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize("ends", ["succeeded", "failed", "cancelled"])
async def test_deps_are_left_with_what_the_run_ended_with(ends: str) -> None:
    left: list[BaseException | None] = []
    begun = asyncio.Event()

    @asynccontextmanager
    async def database(run: RunInfo) -> AsyncGenerator[str]:
        try:
            yield "acme"
        except BaseException as error:
            left.append(error)
            raise
        left.append(None)

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    failing = {"error": {"class": "auth", "message": "No such key."}}
    script: list[Any] = {"succeeded": ["Done."], "failed": [failing], "cancelled": [calls("wait")]}[ends]
    async with Agent(ScriptedModel(script), deps=database, tools=[wait]).stream("Go.") as run:
        if ends == "cancelled":
            await begun.wait()
        elif ends == "failed":
            with pytest.raises(RunFailed, match="No such key"):
                await run.result()
        else:
            await run.result()
    (error,) = left
    match ends:
        case "failed":
            assert isinstance(error, RunFailed)
            assert (error.code, error.message) == ("auth", "No such key.")
        case "cancelled":
            assert isinstance(error, RunCancelled)
        case _:
            assert error is None


async def test_engine_that_is_closed_leaves_deps_of_its_runs() -> None:
    told: list[str] = []
    begun = asyncio.Event()

    @asynccontextmanager
    async def database(run: RunInfo) -> AsyncGenerator[str]:
        told.append("entered")
        yield "acme"
        told.append("left")

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with Engine(drain_s=0) as engine:
        await engine.start(Agent(ScriptedModel([calls("wait")]), deps=database, tools=[wait]), "Go.")
        await begun.wait()
    assert told == ["entered", "left"]


async def test_deps_close_when_a_run_parks_and_return_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holding, "KEEP_S", 0.01)
    monkeypatch.setattr(holding, "_SWEEP_S", 0.01)
    told: list[str] = []
    left = asyncio.Event()

    @asynccontextmanager
    async def database(run: RunInfo) -> AsyncGenerator[str]:
        told.append("entered")
        yield "acme"
        told.append("left")
        left.set()

    paused = asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Waits."""
        begun.set()
        await paused.wait()
        return "ok"

    begun = asyncio.Event()
    agent = Agent(ScriptedModel([calls("wait"), "Done."]), deps=database, tools=[wait])
    async with agent.stream("Go.") as run:
        await begun.wait()
        await run.pause()
        paused.set()
        await asyncio.wait_for(left.wait(), 60)
        await run.resume()
        assert (await run.result()).text == "Done."
    assert told == ["entered", "left"] * 2


async def test_deps_of_an_answer_belong_to_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run stays in memory until they are made."""
    monkeypatch.setattr(holding, "KEEP_S", 0.001)
    monkeypatch.setattr(holding, "_SWEEP_S", 0.001)
    told: list[str] = []

    @asynccontextmanager
    async def database(run: RunInfo) -> AsyncGenerator[str]:
        if told:
            await asyncio.sleep(100 * holding.KEEP_S)
        told.append("entered")
        yield "db"
        told.append("left")

    @tool(confirm="Pay?")
    async def pay(amount: int) -> str:
        """Pays."""
        return f"Paid {amount}."

    agent = Agent(ScriptedModel([PAY, "Done."]), name="payer", deps=database, tools=[pay])
    async with asyncio.timeout(60), Engine(tmp_path) as engine:
        run = await engine.start(agent, "Go.")
        question = await asked(run)
        while told != ["entered", "left"]:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)
        await run.approve(question.id, args={"amount": 4})
        result = await run.result()
        assert [call.result.partition("\n")[0] for call in result.calls] == ["Paid 4."]
    assert told == ["entered", "left"] * 2


async def test_deps_interrupted_by_a_cancel_are_undone() -> None:
    begun = asyncio.Event()
    undone: list[str] = []

    @asynccontextmanager
    async def database(run: RunInfo) -> AsyncGenerator[str]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            undone.append(run.id)
        yield "never"

    async with Agent(ScriptedModel(["x"]), deps=database).stream("Go.") as run:
        await begun.wait()
    assert undone == [run.id]
    assert (await run.result()).status == "cancelled"


async def test_deps_interrupted_by_engine_close_have_not_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun, may_open = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def database(run: RunInfo) -> AsyncGenerator[str]:
        begun.set()
        await may_open.wait()
        yield "db"

    agent = Agent(ScriptedModel(["Done."]), name="reader", deps=database)
    async with asyncio.timeout(60):
        async with Engine(tmp_path, agents=[agent], drain_s=0) as engine:
            run_id = (await engine.start(agent, "Go.")).id
            await begun.wait()
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        may_open.set()
        async with Engine(tmp_path, agents=[agent]) as engine:
            assert (await engine.attach(run_id).result()).text == "Done."


async def test_deps_and_hooks_that_hang_keep_the_result_from_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert deps_of_runs.LEAVE_S == 5.0  # as the documentation says
    monkeypatch.setattr("weftline.agent.running.deps.LEAVE_S", 0.01)
    monkeypatch.setattr("weftline.agent.planning.sources.LEAVE_S", 0.01)
    monkeypatch.setattr("weftline.agent.planning.sources._ABANDONED_S", 0.01)
    interrupted: list[str] = []

    @asynccontextmanager
    async def database(run: RunInfo) -> AsyncGenerator[str]:
        yield "acme"
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.append("deps")

    async with Engine() as engine:
        agent = Agent(ScriptedModel(["Done.", "Done."]), deps=database)
        assert (await agent.run("Go.", engine=engine)).text == "Done."

        @agent.on(RunEnded)
        async def hangs(end: RunEnded) -> None:
            await asyncio.Event().wait()

        assert (await agent.run("Go.", engine=engine)).text == "Done."
        assert interrupted == []
    assert interrupted == ["deps", "deps"]
    assert "are abandoned" in caplog.text
    assert "are interrupted" in caplog.text


async def test_deps_that_fail_while_they_are_used_fail_the_run() -> None:
    @asynccontextmanager
    async def database(run: RunInfo) -> AsyncGenerator[asyncio.Event]:
        lost, told = asyncio.Event(), asyncio.Event()

        async def connection() -> None:
            await lost.wait()
            told.set()
            raise ConnectionError("the database went away")

        async with asyncio.TaskGroup() as group:
            group.create_task(connection())
            yield lost

    agent = Agent(ScriptedModel([calls("look"), "Never asked."]), deps=database, tools=[look])

    @agent.on(ToolGate)
    async def loses(gate: ToolGate, context: RunContext[asyncio.Event]) -> None:
        context.deps.set()
        for _ in range(5):
            await asyncio.sleep(0)

    with pytest.raises(AgentFailed, match="deps failed") as caught:
        await agent.run("Go.")
    assert isinstance(caught.value.__cause__, ExceptionGroup)


@pytest.mark.parametrize("where", ["enter", "made", "instructions"])
async def test_fault_of_agent_code_has_class_words_and_cause(where: str) -> None:
    @asynccontextmanager
    async def database(run: RunInfo) -> AsyncGenerator[str]:
        if where == "enter":
            raise ConnectionError("no database")
        yield "acme"

    def not_a_manager(run: RunInfo) -> Any:
        raise ConnectionError("no database")

    def instructions(context: RunContext[str]) -> str:
        if where == "instructions":
            raise ConnectionError("no database")
        return "Be brief."

    model = ScriptedModel(["x"])
    agent = Agent(model, deps=not_a_manager if where == "made" else database, instructions=instructions)
    with pytest.raises(AgentFailed, match="ConnectionError: no database") as caught:
        await agent.run("Go.")
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert caught.value.code == "agent_error"
    assert not caught.value.retryable
    assert model.requests == []


async def test_value_that_is_not_a_tool_is_refused() -> None:
    with pytest.raises(TypeError, match="neither a tool nor a function"):
        Agent(ScriptedModel(["x"]), tools=[7])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


async def test_agents_functions_and_models_are_not_kept() -> None:
    def once() -> tuple[weakref.ref[Any], ...]:
        def mine() -> str:
            """Mine."""
            return "mine"

        model = ScriptedModel(["Done."])
        agent = Agent(model, tools=[mine])
        refs = weakref.ref(agent), weakref.ref(mine), weakref.ref(model)
        agents.append(agent)
        return refs

    agents: list[Agent[Any, Any]] = []
    refs = once()
    await agents.pop().run("Go.")
    for _ in range(70):
        await Agent(ScriptedModel(["Done."])).run("Go.")
    gc.collect()
    assert [ref() for ref in refs] == [None, None, None]


async def test_a_run_that_nobody_owns_keeps_only_its_log() -> None:
    async with Engine() as engine:
        run = await engine.start(Agent(ScriptedModel(["Done."])), "Go.")
        await run.result()
        assert engine.agents == {}
        assert (await engine.attach(run.id).result()).text == "Done."


def test_an_engine_that_is_not_closed_is_told_of() -> None:
    async def forgets() -> None:
        await Engine().__aenter__()

    def forgotten() -> None:
        asyncio.run(forgets())
        gc.collect()

    with pytest.warns(ResourceWarning, match="never closed"):
        forgotten()


def test_the_engine_of_runs_without_one_goes_with_its_loop() -> None:
    found: list[weakref.ref[Engine]] = []

    async def runs() -> None:
        await Agent(ScriptedModel(["Done."])).run("Go.")
        found.append(weakref.ref(await in_memory()))

    asyncio.run(runs())
    gc.collect()
    assert found[0]() is None


async def test_gate_interrupted_by_a_pause_is_not_asked_again() -> None:
    asked: list[str] = []
    both, go_on = asyncio.Event(), asyncio.Event()
    turn = calls(("look", {"at": "a"}), ("look", {"at": "b"}))
    agent = Agent(ScriptedModel([turn, "Done."]), tools=[look])

    @agent.on(ToolGate)
    async def slow(gate: ToolGate) -> None:
        asked.append(gate.args["at"])
        if len(asked) == 2:
            both.set()
        await go_on.wait()

    async with agent.stream("Go.") as run:
        await both.wait()
        await run.pause()
        go_on.set()
        await run.resume()
        result = await run.result()
    assert sorted(asked) == ["a", "b"]
    assert [call.result for call in result.calls] == ["a: seen", "b: seen"]


async def test_limit_on_costs_that_cannot_hold_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    class Lab(ScriptedModel):
        @property
        def name(self) -> str:
            return "lab"

    limits = Limits(max_cost_usd=1)
    assert (await Agent(ScriptedModel(["Done."]), limits=limits).run("Go.")).text == "Done."  # costs nothing
    agent = Agent(Lab(["Done.", "Done."]), limits=limits)
    async with Engine() as engine:
        with pytest.warns(UserWarning, match="price of the model 'lab:.*max_cost_usd"):
            await agent.run("Go.", engine=engine)
        await agent.run("Go.", engine=engine)  # a warning here would be an error
    assert "max_cost_usd" not in caplog.text  # a script without a log would print it twice


async def test_an_engine_bounds_all_attempts_of_a_turn_at_one_model() -> None:
    silent = ScriptedModel([{"deltas": ["Begun.", "Never."], "delay_ms": 600_000}])
    async with Engine(model_retries_timeout_s=0.05) as engine:
        with pytest.raises(RunFailed) as caught:
            await (await engine.start(Agent(silent), "Go.")).result()
    assert "Begun." in caught.value.result.text
    with pytest.raises(ValueError, match="model_retries_timeout_s"):
        Engine(model_retries_timeout_s=0)
