"""What a call comes to that a run of its own has carried out: its answer, what it took, and where to find it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from weftline import Agent, Engine, ToolContext, ToolFailed, tool
from weftline.events import CallFinished, CallOpened
from weftline.testing import ScriptedModel, calls
from weftline.tools import Bounded, Hint, ServerData, Telemetry


@tool(effect="read")
def look(ok: bool = True) -> str:
    """Looks."""
    if not ok:
        raise ToolFailed("nothing there")
    return "seen"


@tool
async def hold() -> str:
    """Never returns."""
    await asyncio.Event().wait()
    return ""


USED = {"usage": {"input": 30, "output": 4}}


def boss(*turns: Any, tools: Any = (look, hold), **options: Any) -> Agent[Any, Any]:
    helper = Agent(ScriptedModel(list(turns)), name="helper", tools=list(tools), **options)
    return Agent(ScriptedModel([calls("helper", task="Go."), "Done."]), name="boss", tools=[helper.as_tool("Helps.")])


@pytest.mark.requirement("run.child.result")
@pytest.mark.parametrize(
    ("turns", "made", "status"),
    [
        ([{"text": "Found.", **USED}], 0, "succeeded"),
        ([calls("look"), calls(("look", {}), ("look", {"ok": False})), {"text": "Found.", **USED}], 3, "succeeded"),
        ([calls("look", ok=False), {"text": "Found.", **USED}], 1, "succeeded"),
        ([calls("look"), {"error": {"class": "auth", "message": "no key"}, **USED}], 1, "failed"),
        ([calls("look"), calls("hold")], 2, "cancelled"),
    ],
    ids=["no tools", "tools", "all failed", "it failed", "it was cancelled"],
)
async def test_child_answer_is_the_result_with_link_and_usage(turns: list[Any], made: int, status: str) -> None:
    async with Engine() as engine:
        run = await engine.start(boss(*turns), "Go.")
        child, events = "", list[Any]()
        async for event in run.events(children=True):
            events.append(event)
            if isinstance(event, CallOpened) and event.run_id != run.id:
                child = event.run_id
                if event.name == "hold":
                    await engine.attach(child).cancel()
        result = await run.result()
        (call,) = result.calls
        assert (result.text, result.status) == ("Done.", "succeeded"), "the parent goes on"
        assert call.ok == (status == "succeeded") and (call.result == "Found." or not call.ok)
        (event,) = [one for one in events if isinstance(one, CallFinished) and one.run_id == run.id]
        link = event.child
        assert link is not None and link == call.child
        assert (link.agent, link.parent_run_id, link.parent_call_id) == ("helper", run.id, call.id)
        assert link.calls == made and link.run_id == (child or link.run_id) != run.id
        assert await engine.attach(link.run_id).status() == status
        whole, own = result.usage, result.own_usage
        assert call.telemetry.tokens_used == whole.input + whole.output - own.input - own.output
        assert call.telemetry.duration_ms is not None and call.telemetry.extra["turns"] >= 1


class Report(BaseModel):
    title: str


@tool(effect="read", terminal=True, bounded=True)
def submit(title: str, context: ToolContext) -> Any:
    """Ends the run."""
    context.server_data.append(ServerData("chart", [1, 2], "timeline"))
    context.telemetry = Telemetry(model="small", extra={"pages": 3})
    return Bounded(value={"title": title}, returned=1, total=9, truncated=True, refinement_hint="Name a month.")


@tool(effect="read", terminal=True)
def submit_number() -> int:
    """Ends the run otherwise."""
    return 7


@pytest.mark.requirement("run.child.final_result")
@pytest.mark.parametrize("typed", [False, True])
async def test_child_may_end_with_result_of_terminal_tool(typed: bool) -> None:
    options: dict[str, Any] = {"output": Report} if typed else {}
    agent = boss(calls("submit", title="Rents"), tools=[submit], **options)
    async with Engine() as engine:
        run = await engine.start(agent, "Go.")
        result = await run.result()
        (call,) = result.calls
        assert call.ok and '"title"' in call.result and "Rents" in call.result
        assert call.bounds is not None and (call.bounds.returned, call.bounds.total) == (1, 9)
        assert [one.kind for one in call.server_data] == ["chart"]
        assert (call.telemetry.model, call.telemetry.extra) == ("small", {"pages": 3, "turns": 1})
        assert call.child is not None and call.child.calls == 1
        assert result.text == "Done."
        child = await engine.attach(call.child.run_id).result()
        assert child.final_call is not None and (child.final, child.text) == (None, "")


@pytest.mark.requirement("run.child.final_result")
async def test_child_answer_of_another_type_is_an_error() -> None:
    agent = boss(calls("submit_number"), tools=[submit_number], output=Report)
    async with Engine() as engine:
        result = await (await engine.start(agent, "Go.")).result()
    (call,) = result.calls
    assert not call.ok and "a result of the wrong type" in call.result and result.text == "Done."
    assert call.failure is not None and call.failure.kind == "malformed_result"


def give_up(*, terminal: bool) -> Any:
    @tool(name="give_up", effect="read", terminal=terminal)
    def give_up(context: ToolContext, reason: str) -> ToolFailed:
        """Says that nothing can be done."""
        context.server_data.append(ServerData("trace", reason))
        hint = Hint("missing_fields", "Name a year.", missing_fields=("year",), restrict_to_tool=True)
        return ToolFailed(reason, kind="invalid_call", hint=hint)

    return give_up


@pytest.mark.requirement("run.child.final_result")
@pytest.mark.parametrize("typed", [False, True])
async def test_error_and_hint_of_a_child_become_the_calls(typed: bool) -> None:
    options: dict[str, Any] = {"output": Report} if typed else {}
    agent = boss(calls("give_up", reason="Which year?"), tools=[give_up(terminal=True)], **options)
    async with Engine() as engine:
        result = await (await engine.start(agent, "Go.")).result()
        (call,) = result.calls
        assert call.child is not None
        child = await engine.attach(call.child.run_id).result()
    assert (call.ok, call.result, call.how, result.text) == (False, "Which year?", "failed", "Done.")
    assert call.failure is not None and call.failure.kind == "invalid_call"
    hint = call.failure.hint
    assert hint is not None and (hint.reason, hint.message, hint.tool) == ("missing_fields", "Name a year.", "helper")
    assert [one.data for one in call.server_data] == ["Which year?"]
    assert (child.status, child.final, len(child.calls)) == ("succeeded", None, 1)
    assert child.final_call is not None and not child.final_call.ok


async def test_returned_failure_of_another_tool_is_a_failure() -> None:
    agent = boss(calls("give_up", reason="No."), "Found.", tools=[give_up(terminal=False)])
    async with Engine() as engine:
        result = await (await engine.start(agent, "Go.")).result()
        (call,) = result.calls
        assert call.child is not None
        child = await engine.attach(call.child.run_id).result()
    assert (call.ok, call.result) == (True, "Found.")
    assert [(one.ok, one.result, one.how) for one in child.calls] == [(False, "No.", "failed")]
