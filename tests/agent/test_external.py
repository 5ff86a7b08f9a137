"""Tools that an outside system carries out: how their calls are offered, and which results are taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import TypedDict

from agent.kit import key_of
from weftline import Agent, Engine, Limits, RunFailed, hook, tool
from weftline.agent.hooks_outside import POINTS
from weftline.agent.run import Run
from weftline.details import AwaitExternalTools
from weftline.errors import Conflict, InvalidRequest, NotFound
from weftline.events import CallFinished
from weftline.failure import Bounds
from weftline.hooks import Hook, Point
from weftline.runs import Provided, RunInfo
from weftline.testing import ScriptedModel, calls
from weftline.tools import Bounded, Paging, ServerData, toolset
from weftline.tools.base import ToolOutput

from .kit import results_in

PATIENCE_S = 60


class Weather(TypedDict):
    city: str
    degrees: int


@tool(external=True)
def weather(city: str) -> Weather:
    """The weather in a city."""
    raise AssertionError("it is carried out outside")


@tool(external=True)
def owner(city: str) -> str | None:
    """Who owns a city, if anybody does."""
    raise AssertionError("it is carried out outside")


@tool(external=True)
def anything(n: int = 0) -> Any:
    """Anything."""
    raise AssertionError("it is carried out outside")


@tool(external=True, bounded=Paging("cursor"))
def streets(city: str, cursor: str = "") -> Bounded:
    """The streets of a city."""
    raise AssertionError("it is carried out outside")


@tool(effect="read")
def look() -> str:
    """Looks."""
    return "Seen."


def together(*turns: dict[str, Any]) -> dict[str, Any]:
    """One turn with the calls of these."""
    return {"tool_calls": [call for turn in turns for call in turn["tool_calls"]]}


def agent_for(*turns: dict[str, Any], **limits: Any) -> tuple[Agent[Any, Any], ScriptedModel]:
    model = ScriptedModel([together(*turns), "Done."])
    tools = [weather, owner, anything, streets, look]
    return Agent(model, name="clerk", tools=tools, limits=Limits(loop_soft=0, **limits)), model


async def offered(run: Run[Any]) -> AwaitExternalTools:
    async for event in run.events(profile=[AwaitExternalTools]):
        if isinstance(event, AwaitExternalTools):
            return event
    raise AssertionError("nobody outside was asked")


def ids(await_: AwaitExternalTools) -> list[str]:
    return [one["call_id"] for one in await_.items]


OWNER, RAIN = calls("owner", city="Rome"), calls("weather", city="Rome")


@pytest.mark.requirement("run.await.external_tools")
async def test_external_calls_are_one_await_with_ordered_results(
    tmp_path: Path,
) -> None:
    agent, model = agent_for(OWNER, calls("look"), RAIN, calls("streets", city="Rome"))
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        asked = await offered(run)
        assert [(one["name"], one["args"]) for one in asked.items] == [
            ("owner", {"city": "Rome"}),
            ("weather", {"city": "Rome"}),
            ("streets", {"city": "Rome", "cursor": ""}),
        ]
        assert asked.id == "external_0"
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        run = engine.attach(run.id)
        assert await offered(run) == asked
        first, second, third = ids(asked)
        some = Bounded(value={"streets": ["Via Appia"], "returned": 9}, returned=1, truncated=True, next_cursor="2")
        await run.provide(
            asked.id,
            [
                Provided(call_id=third, name="streets", result=some),
                Provided(call_id=first, error="Nobody knows."),
                Provided(call_id=second, result={"city": "Rome", "degrees": 30}),
            ],
        )
        result = await run.result()
        events = [event async for event in run]
    closed = [event.name for event in events if isinstance(event, CallFinished) and event.name != "look"]
    assert closed == ["owner", "weather", "streets"]
    listed = '{"next_cursor":"2","returned":1,"streets":["Via Appia"],"truncated":true}'
    assert results_in(model.requests[1].messages) == [
        *("Nobody knows.", "Seen.", '{"city":"Rome","degrees":30}', listed),
    ]
    by_name = {call.name: call for call in result.calls}
    assert [by_name[name].ok for name in ("owner", "weather", "streets")] == [False, True, True]
    assert by_name["streets"].bounds == Bounds(1, None, True, "2")
    assert {by_name[name].telemetry.duration_ms for name in ("owner", "weather", "streets")} == {0}
    assert len(model.requests) == 2


@pytest.mark.requirement("run.await.results_checked")
async def test_result_set_is_accepted_whole_or_refused_with_all_problems(tmp_path: Path) -> None:
    agent, model = agent_for(OWNER, RAIN, calls("anything"), calls("streets", city="Rome"))
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        asked = await offered(run)
        who, rain, any_, roads = ids(asked)
        good = {
            who: Provided(call_id=who, result=None),
            rain: Provided(call_id=rain, result={"city": "Rome", "degrees": 30}),
            any_: Provided(call_id=any_, result=[1]),
            roads: Provided(call_id=roads, result={"streets": []}, bounds=Bounds(0)),
        }

        async def refused(*results: Provided, but: str = "") -> list[tuple[str, str]]:
            """What is wrong with these, in place of those with the same ids."""
            given = {**good, **{one.call_id: one for one in results}}
            sent = list(given.values()) if len({one.call_id for one in results}) == len(results) else list(results)
            with pytest.raises(InvalidRequest) as error:
                await run.provide(asked.id, [one for one in sent if one.call_id != but])
            assert error.value.code == "invalid_answer"
            assert await run.status() == "running" and await offered(run) == asked
            return [(issue["path"], issue["message"]) for issue in error.value.details["issues"]]

        with pytest.raises(InvalidRequest, match="results: give a result for each call") as empty:
            await run.provide(asked.id, [])
        assert empty.value.code == "invalid_answer"
        assert await refused(but=rain) == [("results", f"the call {rain!r} of 'weather' has no result here")]
        assert await refused(*good.values(), good[who]) == [("results[4]", f"a second result for the call {who!r}")]
        assert await refused(Provided(call_id="call_9", result=1)) == [
            ("results[4]", "no call with the id 'call_9' waits for a result")
        ]
        assert await refused(Provided(call_id=who, name="weather", result=None)) == [
            ("results[0].name", f"the call {who!r} is a call of 'owner'")
        ]
        assert await refused(Provided(call_id=who, result="Ann", error="No.")) == [
            ("results[0].error", "give exactly one of `result` and `error`")
        ]
        assert await refused(Provided(call_id=who)) == [
            ("results[0].result", "give exactly one of `result` and `error`")
        ]
        assert await refused(Provided(call_id=any_, result=None)) == [
            ("results[2].result", "the tool does not return null")
        ]
        assert await refused(Provided(call_id=rain, result={"city": "Rome", "degrees": "hot"})) == [
            ("results[1].result", "degrees: Input should be a valid integer")
        ]
        assert await refused(Provided(call_id=any_, result=object())) == [
            ("results[2].result", "it is not JSON: object has no JSON form")
        ]
        cut = Bounds(0, truncated=True)
        for one, fault in (
            (Provided(call_id=roads, result={}), "it says nothing about how much it returned"),
            (Provided(call_id=roads, result={}, bounds=cut), "it is truncated and says neither how to continue"),
            (Provided(call_id=roads, error="No.", bounds=cut), "it has bounds although it failed"),
            (Provided(call_id=any_, result=1, bounds=Bounds(1)), "the tool is not declared bounded"),
        ):
            [(path, message)] = await refused(one)
            assert path.endswith(".bounds") and fault in message
        data = [ServerData("chart", {}, "timeline")]
        assert await refused(Provided(call_id=who, result=None, server_data=data)) == [
            ("results[0]", "only server tools may set this")
        ]
        several = await refused(
            Provided(call_id=rain, result=3),
            Provided(call_id="x", result=1),
            Provided(call_id=any_, result=None),
            but=who,
        )
        assert [path for path, _ in several] == ["results[0].result", "results[1].result", "results[3]", "results"]
        for wrong in ("external_1", "await_0_0_1"):
            with pytest.raises(NotFound) as unknown:
                await run.provide(wrong, list(good.values()))
            assert unknown.value.code == "unknown_await"
        assert len(model.requests) == 1
        await run.provide(asked.id, list(good.values()))
        await run.result()
        with pytest.raises(Conflict) as late:
            await run.provide(asked.id, list(good.values()))
        assert late.value.code == "run_terminal"
    shown = ["null", '{"city":"Rome","degrees":30}', "[1]", '{"returned":0,"streets":[],"truncated":false}']
    assert results_in(model.requests[1].messages) == shown


async def test_call_that_nobody_executes_ends_the_run_or_is_reported() -> None:
    ends, _ = agent_for(OWNER, external_timeout_s=0.01)
    tells, model = agent_for(OWNER, external_timeout_s=0.01, on_external_timeout="report")
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        with pytest.raises(RunFailed) as failed:
            await (await engine.start(ends, "Go.")).result()
        assert failed.value.result.code == "local_timeout"
        await (await engine.start(tells, "Go.")).result()
    assert len(model.requests) == 2


def test_options_that_conflict_with_an_external_tool_are_refused() -> None:
    for options, words in (
        ({"reconcile": lambda: None}, "leave reconcile out"),
        ({"timeout_s": 3}, "leave timeout_s out"),
    ):
        with pytest.raises(ValueError, match=words):
            tool(external=True, **options)(together)  # type: ignore[call-overload]


async def test_result_whose_check_takes_until_run_has_ended_changes_nothing(tmp_path: Path) -> None:
    """Its tools are opened for it: the run was not in memory."""
    model = ScriptedModel([RAIN])
    opened, go_on = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def slow(run: RunInfo) -> AsyncGenerator[None]:
        opened.set()
        await go_on.wait()
        yield

    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path) as engine:
            run = await engine.start(Agent(model, name="clerk", tools=[weather]), "Go.")
            (call_id,) = ids(await offered(run))
        async with Engine(tmp_path, agents=[Agent(model, name="clerk", tools=[weather], deps=slow)]) as engine:
            host = await engine.runtime()
            key = await key_of(engine, run.id)
            output = ToolOutput.of('{"city": "Rome", "degrees": 20}')
            answering = asyncio.create_task(host.answer(key, call_id, output))
            await opened.wait()
            await host.cancel(key)
            go_on.set()
            assert not await answering


async def test_external_call_reaches_the_gates_and_its_turn_ends() -> None:
    seen: list[str] = []

    def noting(name: str, point: type[Point]) -> Hook[Any]:
        def note(at: Point) -> None:
            seen.append(name)

        return hook(point)(note)

    about_calls = [(name, point) for name, point in POINTS.items() if name.startswith(("tool_", "results_", "await_"))]
    assert len(about_calls) > 8
    agent = Agent(
        ScriptedModel([OWNER, "Done."]), tools=[owner], hooks=[noting(name, point) for name, point in about_calls]
    )
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.")
        asked = await offered(run)
        assert seen == ["tool_gate"]
        await run.provide(asked.id, [Provided(call_id=ids(asked)[0], result="Ann")])
        await run.result()
    assert seen == ["tool_gate", "results_stored"]


async def test_results_that_were_materialized_may_come_again_under_their_key() -> None:
    shapes = toolset("desk", owner, weather, materialize=lambda call, result: {"stamped": call.tool})
    model = ScriptedModel([together(OWNER, RAIN), "Done."])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(Agent(model, tools=shapes), "Go.")
        asked = await offered(run)
        who, rain = ids(asked)
        host, key = await engine.runtime(), await key_of(engine, run.id)
        wet = '{"city": "Rome", "degrees": 20}'
        assert await host.answer(key, rain, ToolOutput.of(wet), idempotency_key="one")
        assert await host.answer(key, rain, ToolOutput.of(wet), idempotency_key="one")
        for result, same in (("Ann", True), ("Ann", True), ("Bob", False)):
            giving = host.provide(key, asked.id, [Provided(call_id=who, result=result)], idempotency_key="two")
            if same:
                assert await giving
            else:
                with pytest.raises(Conflict) as other:
                    await giving
                assert other.value.code == "idempotency_conflict"
        with pytest.raises(Conflict) as other:
            await host.answer(key, rain, ToolOutput.of(wet.replace("20", "30")), idempotency_key="one")
        assert other.value.code == "idempotency_conflict"
        await run.result()
    assert all("stamped" in text for text in results_in(model.requests[1].messages))


@pytest.mark.requirement("run.await.external_tools")
async def test_external_toolset_materializes_given_results() -> None:
    def stamped(call: Any, result: Any) -> Any:
        return {"stamped": call.tool}

    tools = toolset("desk", owner, materialize=stamped)
    model = ScriptedModel([OWNER, "Done."])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(Agent(model, tools=tools), "Go.")
        asked = await offered(run)
        await run.provide(asked.id, [Provided(call_id=ids(asked)[0], result="Ann")])
        await run.result()
    assert "stamped" in results_in(model.requests[1].messages)[0]
