"""The one table of points: their names, and what can be registered for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weftline import Agent, hook, tool
from weftline.agent.hooking.calling import point_of
from weftline.agent.hooking.hook_page import table
from weftline.agent.hooks import OTHER_NAMES
from weftline.agent.hooks_outside import POINTS
from weftline.hooks import (
    ContextBuilt,
    Hook,
    Point,
    SystemRendered,
    ToolAfter,
    ToolAfterSuccess,
    ToolBefore,
    ToolError,
    ToolGate,
    ToolTransform,
    ToolUnknown,
)
from weftline.messages import Image, Text, User
from weftline.testing import ScriptedModel, calls
from weftline.tools.results import output_bytes

from .kit import scripted

NAMES = [
    "mcp_bootstrap_start",
    "mcp_bootstrap_end",
    "mcp_connect",
    "mcp_error",
    "skills_resolve",
    "skills_catalog",
    "skills_activate",
    "skills_deactivate",
    "run_start",
    "run_messages",
    "system_before",
    "steer_inject",
    "agent_abort",
    "agent_done",
    "run_end",
    "context_transform",
    "system_transform",
    "turn_before",
    "oauth_refresh",
    "stream_thinking",
    "stream_text",
    "stream_end",
    "turn_after",
    "usage",
    "output",
    "budget_exceeded",
    "tool_budget_exceeded",
    "tool_results_after",
    "tool_gate",
    "tool_unknown",
    "validation_reject",
    "validation_coerce",
    "tool_before",
    "tool_transform",
    "tool_after",
    "tool_error",
    "mcp_tool_gate",
    "mcp_tool_before",
    "mcp_tool_transform",
    "mcp_tool_after",
    "spawn_before",
    "spawn_complete",
    "spawn_error",
    "child_stream_text",
    "child_stream_thinking",
    "child_stream_end",
    "child_tool_gate",
    "child_mcp_tool_gate",
    "child_tool_before",
    "child_tool_after",
    "child_tool_error",
    "child_turn_after",
    "run_started",
    "messages_taken",
    "system_rendered",
    "rows_loaded",
    "context_built",
    "before_model",
    "after_model",
    "tool_after_success",
    "tool_after_failure",
    "tool_result_stored",
    "results_stored",
    "output_ready",
    "turn_ended",
    "run_ended",
]


def nothing(point: Point) -> None:
    """A hook."""


@pytest.mark.requirement("loop.hook.names")
@pytest.mark.parametrize("name", NAMES)
def test_a_hook_can_be_registered_under_each_name(name: str) -> None:
    made: Hook[Point] = hook(name)(nothing)
    assert made.point is POINTS[OTHER_NAMES.get(name, name)]
    assert Agent(ScriptedModel(["x"]), hooks=[made]).hooks == [made]


@pytest.mark.requirement("loop.hook.names")
def test_every_name_leads_to_one_point() -> None:
    assert not OTHER_NAMES.keys() & POINTS.keys()
    assert set(OTHER_NAMES.values()) <= POINTS.keys()
    gate: type[Point] = point_of("tool:gate")
    stored: type[Point] = point_of("tool-results:after")
    assert gate is ToolGate and stored.name == "results_stored"
    assert len(set(POINTS.values())) == len(POINTS)


@pytest.mark.requirement("loop.hook.unknown_name")
def test_name_outside_the_table_is_refused_when_given() -> None:
    with pytest.raises(TypeError, match="tool_gate"):
        hook("tool_gat")
    with pytest.raises(TypeError, match="nowhere"):
        Agent(ScriptedModel(["x"])).on("nowhere")


def test_the_page_about_hooks_has_the_table_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- table -->\n(.*?)<!-- /table -->", page, re.DOTALL)
    assert found is not None and found[1].strip() == table().strip(), (
        "python -m weftline.agent.hooking.hook_page docs/hooks.md"
    )


@tool
def pay() -> str:
    """Pays."""
    return "paid"


@pytest.mark.requirement("loop.call.unknown")
async def test_an_unknown_tool_is_an_error_that_hooks_can_word() -> None:
    agent, _ = scripted(calls("ghost"), calls("spirit"), tools=[pay])
    seen: list[str] = []

    @agent.on(ToolUnknown)
    def unknown(point: ToolUnknown) -> None:
        seen.append(f"unknown {point.tool}")
        point.suppress_error = point.tool == "spirit"

    @agent.on(ToolError)
    def worded(point: ToolError) -> None:
        seen.append(f"error {point.tool}")
        point.result = "No ghosts here."  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]

    result = await agent.run("Go.")
    assert seen == ["unknown ghost", "error ghost", "unknown spirit"]
    assert result.calls[0].result == "No ghosts here."
    assert result.calls[1].result.startswith("Unknown tool: spirit")


@pytest.mark.requirement("loop.call.hook_context", "loop.call.output_bytes")
async def test_hooks_of_a_call_share_its_name_and_size() -> None:
    @tool(effect="read")
    def draw() -> list[Text | Image]:
        """Draws."""
        return [Text("ä"), Image("image/png", data="QUJD")]

    agent, _ = scripted(calls("Draw"), tools=[draw], tool_aliases={"draw": "Draw"})
    named: set[tuple[int, str, str, str]] = set()
    sizes: list[int] = []
    for point in (ToolGate, ToolBefore, ToolAfterSuccess, ToolTransform, ToolAfter):
        agent.on(point)(lambda at: named.add((at.turn, at.call_id, at.tool, at.display_name)))

    @agent.on(ToolTransform)
    def shorter(point: ToolTransform) -> None:
        sizes.append(point.output_bytes)
        point.result = point.result[:1]

    agent.on(ToolAfter)(lambda at: sizes.append(at.output_bytes))
    await agent.run("Go.")
    assert [one[2:] for one in named] == [("draw", "Draw")]
    assert sizes == [6, 2] == [output_bytes((Text("ä"), Image("image/png", data="QUJD"))), output_bytes((Text("ä"),))]


@pytest.mark.requirement("loop.hook.request_only")
async def test_hook_changes_to_a_request_end_with_it() -> None:
    agent, model = scripted(calls("pay"), tools=[pay], instructions="Be brief.")
    seen: list[tuple[str, int]] = []

    @agent.on(SystemRendered)
    def louder(point: SystemRendered) -> None:
        seen.append((point.system, point.turn))
        point.system += " Loudly."

    @agent.on(ContextBuilt)
    def longer(point: ContextBuilt) -> None:
        point.messages = [*point.messages, User.of("Mind the gap.")]

    result = await agent.run("Go.")
    assert seen == [("Be brief.", 0), ("Be brief.", 1)]
    assert [request.system for request in model.requests] == ["Be brief. Loudly."] * 2
    assert [list(request.messages).count(User.of("Mind the gap.")) for request in model.requests] == [1, 1]
    assert User.of("Mind the gap.") not in result.messages
