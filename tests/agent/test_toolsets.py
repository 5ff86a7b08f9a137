"""Tools as a set with a name: what it does to the arguments of their calls, and to the results."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from weftline import Agent, Engine, ToolContext, ToolFailed, code, files, tool
from weftline.agent.run import Run
from weftline.events import CallFinished
from weftline.failure import PREVIEW_CHARS
from weftline.testing import ScriptedModel, calls
from weftline.tools import Bounded, Happened, ServerData, Telemetry, ToolOutput, ToolQuestion, ToolsetCall, toolset

from .kit import asked, results_in, scripted

PATIENCE_S = 60


@tool(effect="read")
def echo(context: ToolContext, wrapped: dict[str, Any] | None = None, plain: int = 0) -> str:
    """Says what it was given."""
    return json.dumps([wrapped, plain, context.toolset])


@tool(effect="once", confirm="Pay?")
def pay(wrapped: dict[str, Any]) -> str:
    """Pays."""
    return f"paid {wrapped['amount']}"


class Wrapping:
    """An adapter that must not be applied twice."""

    def __init__(self) -> None:
        self.seen: list[ToolsetCall] = []

    def __call__(self, call: ToolsetCall) -> Any:
        self.seen.append(call)
        given = json.loads(call.args)
        if given.get("plain"):
            return None if given["plain"] == 1 else ""
        if "broken" in given:
            raise ToolFailed("no such order")
        return {"wrapped": given} if "as_text" not in given else json.dumps({"wrapped": given})


@pytest.mark.requirement("run.result.adapters")
async def test_arguments_are_adapted_once_before_they_are_read() -> None:
    wrap = Wrapping()
    made = calls(
        ("echo", {"a": "1"}),
        ("echo", {"as_text": 2}),
        ("echo", {"plain": 1}),
        ("echo", {"plain": 2}),
        ("echo", {"broken": 1}),
        ("echo", {"a": 3}),
    )
    agent, model = scripted(made, tools=[*toolset("orders", echo, adapt=wrap)])
    result = await agent.run("Go.")
    assert [call.args for call in result.calls[:4]] == [
        {"plain": 0, "wrapped": {"a": "1"}},
        {"plain": 0, "wrapped": {"as_text": 2}},
        {"plain": 1, "wrapped": None},
        {"plain": 2, "wrapped": None},
    ]
    assert [json.loads(call.result) for call in result.calls[:2]] == [
        [{"a": "1"}, 0, "orders"],
        [{"as_text": 2}, 0, "orders"],
    ]
    failed, after = result.calls[4:]
    assert not failed.ok and failed.result == (
        "Not executed: the arguments could not be passed on to echo: no such order"
    )
    assert after.ok and failed.result in results_in(model.requests[1].messages)
    assert len(wrap.seen) == 6
    first = wrap.seen[0]
    assert (first.run_id, first.tool, first.toolset, first.parent_call) == (result.run_id, "echo", "orders", None)
    assert (first.call_id, first.turn_id) == (result.calls[0].id, f"{result.run_id}.0")
    # On its own the tool is as it was.
    alone, _ = scripted(calls("echo", plain=5), tools=[echo])
    assert json.loads((await alone.run("Go.")).calls[0].result) == [None, 5, ""]


@pytest.mark.requirement("run.result.adapters")
@pytest.mark.parametrize("edited", [False, True])
async def test_approved_or_edited_arguments_are_not_adapted_again(edited: bool, tmp_path: Path) -> None:
    wrap = Wrapping()
    agent, _ = scripted(calls("pay", amount=5), tools=[*toolset("orders", pay, adapt=wrap)], name="payer")
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, agents=[agent]) as engine:
            run = await engine.start(agent, "Go.")
            question = await asked(run)
        async with Engine(tmp_path, agents=[agent]) as engine:
            run = engine.attach(run.id)
            await run.approve(question.id, args={"wrapped": {"amount": 4}} if edited else None)
            result = await run.result()
    assert result.calls[0].ok and result.calls[0].result.startswith("paid 4" if edited else "paid 5")
    assert len(wrap.seen) == 1


class Receipts:
    """A materializer that leaves a trace on each result."""

    def __init__(self) -> None:
        self.seen: list[tuple[ToolsetCall, ToolOutput]] = []

    def __call__(self, call: ToolsetCall, output: ToolOutput) -> Any:
        self.seen.append((call, output))
        call.server_data.append(ServerData("receipt", call.call_id, "timeline"))
        return None


@tool(effect="read")
def look(how: str = "") -> str:
    """Looks."""
    if how == "fail":
        raise ToolFailed("dark")
    if how == "ask":
        raise ToolQuestion("Where?")
    return f"seen {how}"


@pytest.mark.requirement("run.result.adapters")
async def test_every_result_is_materialized_once_whoever_gave_it(tmp_path: Path) -> None:
    receipts = Receipts()
    made = calls(("look", {"how": "well"}), ("look", {"how": "fail"}), ("look", {"how": "ask"}))
    agent, model = scripted(made, tools=[*toolset("eyes", look, materialize=receipts)], name="looker")
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, agents=[agent]) as engine:
            run = await engine.start(agent, "Go.", thread="t", turn_id="t7")
            question = await asked(run)
        async with Engine(tmp_path, agents=[agent]) as engine:
            run = engine.attach(run.id)
            await run.answer(question.id, "Over there.")
            result = await run.result()
            again = await engine.attach(run.id).result()
    assert [(call.ok, call.result) for call in result.calls] == [
        (True, "seen well"),
        (False, "dark"),
        (True, "Over there."),
    ]
    assert [call.server_data for call in result.calls] == [
        (ServerData("receipt", call.id, "timeline"),) for call in result.calls
    ]
    assert again.calls == result.calls and "receipt" not in str(model.requests)
    assert [(call.call_id, output.is_error) for call, output in receipts.seen] == [
        (result.calls[0].id, False),
        (result.calls[1].id, True),
        (result.calls[2].id, False),
    ]
    given = receipts.seen[2][0]
    assert (given.turn_id, json.loads(given.args)) == ("t7", {"how": "ask"}) and given.thread_id is not None


async def test_returned_value_replaces_the_result() -> None:
    @tool(effect="read", bounded=True)
    def rows() -> Bounded:
        """Lists rows."""
        return Bounded(value={"rows": [1, 2]}, returned=2, total=9)

    def shaped(call: ToolsetCall, output: ToolOutput) -> Any:
        if call.tool == "rows":
            return {"list": json.loads(output.parts[0].text)["rows"], "returned": 7}  # type: ignore[union-attr]
        how = json.loads(call.args)["how"]
        if how == "raise":
            raise ValueError("not a receipt")
        return {"error": ToolFailed("no"), "output": replace(output, is_error=True)}.get(how, {"saw": how})

    made = calls(*[("look", {"how": how}) for how in ("well", "raise", "error", "output")], ("rows", {}))
    agent, _ = scripted(made, tools=[*toolset("eyes", look, rows, materialize=shaped)])
    result = await agent.run("Go.")
    assert [(call.ok, call.how, call.result) for call in result.calls] == [
        (True, "returned", '{"saw":"well"}'),
        (False, "failed", "look has run, but its result cannot be used: not a receipt"),
        (False, "failed", "no"),
        (False, "failed", "seen output"),
        (True, "returned", '{"list":[1,2],"returned":2,"total":9,"truncated":false}'),
    ]
    assert result.calls[1].failure is not None and result.calls[1].failure.kind == "malformed_result"


async def test_reconciled_result_is_materialized_too(tmp_path: Path) -> None:
    receipts, begun = Receipts(), asyncio.Event()

    async def happened(context: ToolContext) -> Happened:
        return Happened("sent, it seems")

    @tool(effect="reconcile", reconcile=happened)
    async def send() -> str:
        """Sends."""
        begun.set()
        await asyncio.Event().wait()
        return "sent"

    agent, _ = scripted(calls("send"), tools=[*toolset("mail", send, materialize=receipts)], name="sender")
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, agents=[agent], drain_s=0.01) as engine:
            run = await engine.start(agent, "Go.")
            await begun.wait()
        async with Engine(tmp_path, agents=[agent]) as engine:
            result = await engine.attach(run.id).result()
    (call,) = result.calls
    assert (call.result, len(call.server_data), len(receipts.seen)) == ("sent, it seems", 1, 1)


# What a call took


@pytest.mark.requirement("run.result.telemetry")
async def test_result_reports_the_duration_of_its_call() -> None:
    @tool(effect="read")
    def reports(context: ToolContext) -> str:
        """Knows what it took."""
        context.telemetry = Telemetry(12, 7, "small", {"cached": True})
        return "a\n  b\t" + "c" * 200

    @tool(effect="read")
    def silent() -> str:
        """Does not say."""
        return "short"

    def measured(call: ToolsetCall, duration_ms: int) -> Telemetry | None:
        assert duration_ms >= 0
        return Telemetry(duration_ms, 99, "builder", {"tool": call.tool})

    @tool(effect="read")
    def plain(n: int = 0) -> str:
        """Is in no set."""
        return "plain"

    tools = [*toolset("all", reports, silent, telemetry=measured), plain, code()]
    nested = calls("code", code="export default await plain({});")
    agent, _ = scripted(calls(("reports", {}), ("silent", {}), ("plain", {})), nested, tools=tools)
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.")
        result = await run.result()
        finished = {event.call_id: event for event in await finished_calls(run)}
        closed = [one for one in (await run.entries(limit=500)).entries if one.kind == "call.closed"]
    entries: dict[str, Any] = {one.head["id"]: one for one in closed if one.head is not None}
    told, built, measured_by_us, inner, outer = [finished[call.id] for call in result.calls]
    assert told.telemetry == Telemetry(12, 7, "small", {"cached": True})
    took = built.telemetry
    assert (took.tokens_used, took.model, took.extra) == (99, "builder", {"tool": "silent"})
    assert took.duration_ms is not None and measured_by_us.telemetry.duration_ms is not None
    assert measured_by_us.telemetry == Telemetry(measured_by_us.telemetry.duration_ms)
    assert (inner.name, inner.parent_call, outer.parent_call) == ("plain", outer.call_id, None)
    assert told.preview == "a b " + "c" * (PREVIEW_CHARS - 5) + "…" and len(told.preview) == PREVIEW_CHARS
    assert built.preview == "short"
    for call in result.calls:
        entry, event = entries[call.id], finished[call.id]
        assert entry.head.get("active_us", 0) >= 0
        assert call.telemetry == event.telemetry and entry.head.get("parent", "") == (event.parent_call or "")
    assert entries[told.call_id].body["telemetry"]["tokens_used"] == 7


async def finished_calls(run: Run[Any]) -> list[CallFinished]:
    return [event async for event in run.events() if isinstance(event, CallFinished)]


async def test_unknown_telemetry_is_left_to_the_runtime() -> None:
    def broken(call: ToolsetCall, duration_ms: int) -> Telemetry | None:
        raise ValueError("no clock")

    agent, _ = scripted(calls("look"), tools=[*toolset("eyes", look, telemetry=broken)])
    (call,) = (await agent.run("Go.")).calls
    assert call.ok and call.telemetry.duration_ms is not None and call.telemetry.tokens_used is None


def test_impossible_toolset_is_refused() -> None:
    with pytest.raises(ValueError, match="a set of tools needs a name"):
        toolset("", look)
    with pytest.raises(TypeError, match="adapt must be a function, not int"):
        toolset("eyes", look, adapt=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is a set of tools itself"):
        toolset("eyes", files("."))
    with pytest.raises(TypeError, match="is neither a tool nor a function"):
        toolset("eyes", 5)


def test_functions_of_set_are_part_of_what_run_rests_on() -> None:
    from weftline.tools.digests import written

    (plain,) = toolset("eyes", look)
    (shaped,) = toolset("eyes", look, materialize=lambda call, output: None)
    assert written(plain) == written(look) != written(shaped)


def test_a_plain_function_becomes_a_tool() -> None:
    def greet(name: str) -> str:
        """Greets."""
        return f"Hello {name}"

    agent = Agent(ScriptedModel(["Hi."]), tools=[*toolset("manners", greet)])
    assert [one.spec.name for one in agent.tools] == ["greet"]  # type: ignore[union-attr]
