"""What happens while a hook takes its time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weftline import Agent, Limits, tool
from weftline.hooks import ToolAfter, ToolBudgetExceeded, ToolGate
from weftline.runtime import carry_out as carrying
from weftline.testing import ScriptedModel

PATIENCE_S = 60


async def test_call_that_ends_during_a_hook_is_not_repeated() -> None:
    began, hooked, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    starts: list[str] = []

    @tool(effect="once", concurrent=True)
    async def pay() -> str:
        """Pays."""
        starts.append("pay")
        began.set()
        await hooked.wait()
        return "Paid."

    @tool(effect="read", concurrent=True)
    async def look() -> str:
        """Looks."""
        raise AssertionError("it has no budget")

    both: dict[str, Any] = {"tool_calls": [{"name": "pay", "args": {}}, {"name": "look", "args": {}}]}
    agent = Agent(ScriptedModel([both, "Done."]), tools=[pay, look], limits=Limits(tool_budgets={"look": 0}))

    @agent.on(ToolGate)
    async def until_it_has_begun(gate: ToolGate) -> None:
        if gate.tool == "look":
            await began.wait()

    @agent.on(ToolAfter)
    async def notice(after: ToolAfter) -> None:
        if after.tool == "pay":
            ended.set()

    @agent.on(ToolBudgetExceeded)
    async def take_time(exceeded: ToolBudgetExceeded) -> None:
        hooked.set()
        await ended.wait()
        for _ in range(20):
            await asyncio.sleep(0)  # until the result is in the log

    async with asyncio.timeout(PATIENCE_S):
        result = await agent.run("Go.")
    assert (starts, result.text) == (["pay"], "Done.")
    assert [(call.name, call.how) for call in result.calls] == [("pay", "returned"), ("look", "budget")]


async def test_command_that_fails_while_hook_is_at_work_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would wake the driver any more."""
    began, hooked, failed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    run_tool = carrying.run_tool

    async def fails_once(command: Any, *rest: Any) -> Any:
        if failed.is_set() or command.index == 1:
            return await run_tool(command, *rest)
        began.set()
        await hooked.wait()
        failed.set()
        raise RuntimeError("a bug, once")

    monkeypatch.setattr(carrying, "run_tool", fails_once)

    @tool(effect="read", concurrent=True)
    async def look() -> str:
        """Looks."""
        return "a view"

    @tool(effect="read", concurrent=True)
    async def listen() -> str:
        """Listens."""
        raise AssertionError("it has no budget")

    both: dict[str, Any] = {"tool_calls": [{"name": "look", "args": {}}, {"name": "listen", "args": {}}]}
    agent = Agent(ScriptedModel([both, "Done."]), tools=[look, listen], limits=Limits(tool_budgets={"listen": 0}))

    @agent.on(ToolGate)
    async def until_it_has_begun(gate: ToolGate) -> None:
        if gate.tool == "listen":
            await began.wait()

    @agent.on(ToolBudgetExceeded)
    async def take_time(exceeded: ToolBudgetExceeded) -> None:
        hooked.set()
        await failed.wait()
        for _ in range(20):
            await asyncio.sleep(0)  # until the engine has heard of it

    async with asyncio.timeout(PATIENCE_S):
        assert (await agent.run("Go.")).text == "Done."
