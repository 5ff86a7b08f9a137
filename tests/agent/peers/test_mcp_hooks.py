"""The points of MCP servers: connecting, and around a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, hook, mcp
from weftline.hooks import (
    McpBootstrapEnd,
    McpBootstrapStart,
    McpConnect,
    McpError,
    McpToolAfter,
    McpToolBefore,
    McpToolGate,
    McpToolTransform,
    Point,
    ToolAfter,
    ToolBefore,
    ToolTransform,
)
from weftline.messages import Text
from weftline.testing import calls

from .small import Small, model, offered

BOOTSTRAP = (McpBootstrapStart, McpConnect, McpError, McpBootstrapEnd)
CALL = (ToolBefore, McpToolGate, McpToolBefore, McpToolTransform, McpToolAfter, ToolTransform, ToolAfter)


def watched(agent: Agent[Any, Any], *points: type[Point]) -> list[Any]:
    seen: list[Any] = []
    for point in points:
        agent.on(point)(seen.append)
    return seen


@pytest.mark.requirement("loop.mcp.bootstrap")
async def test_servers_report_their_start_and_failure_fails_no_run(tmp_path: Path) -> None:
    small = Small(tmp_path)
    nowhere = mcp([str(tmp_path / "no-such-program")], name="nowhere")
    scripted = model(calls("nowhere__unavailable"), calls("small__look", what="here"))
    agent = Agent(scripted, tools=[nowhere, small.tools])
    seen = watched(agent, *BOOTSTRAP)
    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
    told = {name: [one for one in seen if one.server == name] for name in ("small", "nowhere")}
    assert [one.name for one in told["small"]] == ["mcp_bootstrap_start", "mcp_connect", "mcp_bootstrap_end"]
    assert [one.name for one in told["nowhere"]] == ["mcp_bootstrap_start", "mcp_error", "mcp_bootstrap_end"]
    good, bad = told["small"][-1], told["nowhere"][-1]
    assert good.ok and good.tool_count == 9 and good.error is None and good.duration_ms >= 0
    assert not bad.ok and bad.tool_count == 0 and "no-such-program" in str(bad.error)
    assert "nowhere is unavailable" in result.calls[0].result
    assert result.calls[1].result == "look: here"


async def test_unreachable_server_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    program = tmp_path / "late"
    late = mcp([str(program), str(tmp_path / "journal")], name="late")
    agent = Agent(first := model(), tools=[late])
    seen = watched(agent, *BOOTSTRAP)
    async with Engine() as engine:
        await agent.run("Go.", engine=engine)
        assert offered(first) == ["late__unavailable"]
        program.write_text(small_program(), encoding="utf-8")
        program.chmod(0o755)
        with agent.override(model=(second := model())):
            await agent.run("Again.", engine=engine)
            await agent.run("And again.", engine=engine)
    assert "late__look" in offered(second)
    assert [one.name for one in seen] == [
        *["mcp_bootstrap_start", "mcp_error", "mcp_bootstrap_end"],
        *["mcp_bootstrap_start", "mcp_connect", "mcp_bootstrap_end"],
    ]


def small_program() -> str:
    import sys

    from .small import SERVER

    return f'#!/bin/sh\nexec {sys.executable} -S {SERVER} "$@"\n'


@pytest.mark.requirement("loop.gate.mcp")
async def test_points_of_call_come_between_those_of_any_tool(tmp_path: Path) -> None:
    small = Small(tmp_path)
    agent = Agent(model(calls("small__look", what="here")), tools=[small.tools])
    seen = watched(agent, *CALL)
    async with Engine() as engine:
        await agent.run("Go.", engine=engine)
    assert [one.name for one in seen] == [point.name for point in CALL]
    assert {(one.tool, one.call_id, one.turn) for one in seen} == {("small__look", seen[0].call_id, 0)}
    assert {one.server for one in seen[1:5]} == {"small"}
    assert seen[1].args == seen[2].args == {"what": "here"}
    assert seen[3].output_bytes == len("look: here")


@pytest.mark.requirement("loop.gate.mcp")
async def test_gate_blocks_call_before_server_hears_of_it(tmp_path: Path) -> None:
    small = Small(tmp_path)
    agent = Agent(model(calls("small__look", what="here")), tools=[small.tools])

    @agent.on(McpToolGate)
    def no(gate: McpToolGate) -> None:
        gate.answer("this is not what counts")
        gate.block(f"not at {gate.server}")

    seen = watched(agent, McpToolBefore, McpToolTransform, McpToolAfter)
    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
    assert (result.calls[0].ok, result.calls[0].result) == (False, "Blocked: not at small")
    assert small.calls == [] and seen == []


@pytest.mark.requirement("loop.gate.mcp")
async def test_a_gate_answers_in_place_of_the_server(tmp_path: Path) -> None:
    small = Small(tmp_path)
    agent = Agent(model(calls("small__look", what="here")), tools=[small.tools])
    agent.on(McpToolGate)(lambda gate: gate.answer({"seen": 1}))
    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
    assert (result.calls[0].ok, result.calls[0].result) == (True, '{"seen":1}')
    assert small.calls == []


@pytest.mark.requirement("loop.gate.fail_closed")
@pytest.mark.parametrize("wrong", ["raises", "sets the arguments"])
async def test_a_gate_that_fails_blocks_the_call(tmp_path: Path, wrong: str) -> None:
    small = Small(tmp_path)

    @hook(McpToolGate)
    async def fails(gate: McpToolGate) -> None:
        if wrong == "raises":
            raise RuntimeError("no")
        gate.args = {"what": "else"}  # they are settled: approval and key are of those that were announced

    agent = Agent(model(calls("small__look", what="here")), tools=[small.tools], hooks=[fails])
    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
    assert result.calls[0].result.startswith("Blocked: ")
    assert result.status == "succeeded" and small.calls == []


async def test_a_result_is_changed_before_any_other_point_sees_it(tmp_path: Path) -> None:
    small = Small(tmp_path)
    agent = Agent(model(calls("small__look", what="here")), tools=[small.tools])

    @agent.on(McpToolTransform)
    def shorter(point: McpToolTransform) -> None:
        point.result = (Text("short"),)
        point.is_error = True

    seen = watched(agent, McpToolAfter, ToolTransform)
    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
    assert (result.calls[0].ok, result.calls[0].result) == (False, "short")
    assert [(one.is_error, one.output_bytes) for one in seen] == [(True, 5), (True, 5)]


async def test_hooks_cannot_change_that_a_call_is_in_doubt(tmp_path: Path) -> None:
    small = Small(tmp_path, env={"DIE_AT": "once"})
    agent = Agent(model(calls("small__once", what="it")), tools=[small.tools])

    @agent.on(McpToolTransform)
    def fine(point: McpToolTransform) -> None:
        point.result, point.is_error = (Text("all is well"),), False

    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
    assert (result.calls[0].ok, result.calls[0].how) == (False, "in_doubt")
