"""What the type checker refuses: `make lint` fails if one of the comments below is not needed."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import assert_type

import pytest

from weftline import Agent, RunContext, ToolContext, hook, tool
from weftline.hooks import OutputReady, ToolGate
from weftline.runs import RunInfo
from weftline.testing import ScriptedModel


class Database:
    tenant = "acme"


class Replica(Database):
    pass


class Other:
    pass


@tool
def bare(context: ToolContext[Database], key: int) -> str:
    """Looks something up."""
    return context.deps.tenant


@tool(effect="read")
def called(context: ToolContext[Database], key: int) -> str:
    """Looks something up."""
    return context.deps.tenant


@tool(effect="read")
def any_deps(key: int) -> str:
    """Needs nothing."""
    return str(key)


def plain(key: int) -> str:
    """Not made a tool yet."""
    return str(key)


@asynccontextmanager
async def connected(run: RunInfo) -> AsyncGenerator[Database]:
    yield Database()


@hook(ToolGate)
def watch(gate: ToolGate) -> None:
    pass


@hook(ToolGate)
def look(gate: ToolGate, context: RunContext[Database]) -> None:
    pass


def on_output(answer: OutputReady[int]) -> None:
    pass


def test_tools_and_hooks_for_deps_of_agent_are_accepted() -> None:
    tools = [bare, called, any_deps]
    assert_type(Agent("m", deps=Database, tools=[bare, called, any_deps, plain], hooks=[watch]), Agent[str, Database])
    assert_type(Agent("m", deps=Replica, tools=tools, hooks=[watch, look]), Agent[str, Replica])
    assert_type(Agent("m", output=int, tools=[any_deps]), Agent[int, object])
    assert_type(Agent("m", deps=Database, tools=[any_deps]), Agent[str, Database])  # mypy found `object` here
    assert_type(Agent("m", output=int, deps=connected, tools=[any_deps, bare]), Agent[int, Database])
    agent = Agent("m", output=int)
    agent.on(OutputReady)(on_output)
    agent.on(ToolGate)(watch.fn)
    assert len(agent.hooks) == 2


def test_tools_and_hooks_for_other_deps_are_type_errors() -> None:
    Agent("m", deps=Other, tools=[bare])  # pyright: ignore[reportCallIssue, reportArgumentType]
    Agent("m", deps=Other, tools=[called])  # pyright: ignore[reportCallIssue, reportArgumentType]
    Agent("m", output=int, deps=Other, tools=[any_deps, called])  # pyright: ignore[reportCallIssue, reportArgumentType]
    Agent("m", deps=Other, hooks=[look])  # pyright: ignore[reportCallIssue, reportArgumentType]
    hook(ToolGate)(on_output)  # pyright: ignore[reportCallIssue, reportArgumentType]
    agent = Agent("m", output=str)
    agent.on(OutputReady)(on_output)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert len(agent.hooks) == 1


async def test_a_run_refuses_deps_of_another_type() -> None:
    agent = Agent(ScriptedModel(["Done."]), deps=Database)
    with pytest.raises(TypeError, match=r"deps.*Database.*int"):
        await agent.run("Go.", deps=3)  # pyright: ignore[reportArgumentType]
    assert (await agent.run("Go.", deps=Replica())).text == "Done."
