"""What providers cache: the tools and instructions of an agent are the same bytes, whatever order things came in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weftline import Agent, Engine, Limits, ask_user, skills, tool
from weftline.events import AwaitOpened
from weftline.providers.base import ModelRequest
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import Tool

PATIENCE_S = 60.0


def named(name: str) -> Tool:
    @tool(name=name, effect="read")
    def one() -> str:
        """Does one thing."""
        return name

    return one


class Server:
    """A set of tools from outside that answers when it is its turn."""

    def __init__(self, name: str, *tools: str, disclosure: str = "eager") -> None:
        self.name = name
        self.disclosure = disclosure
        self.after = asyncio.Event()
        self.answered = asyncio.Event()
        self._tools = [named(one) for one in tools]

    async def open(self) -> Sequence[Tool]:
        await self.after.wait()
        self.answered.set()
        return self._tools

    async def close(self) -> None:
        pass


def prefix(request: ModelRequest) -> tuple[bytes, str | None]:
    return msgspec.json.encode(request.tools), request.system


def shelf(place: Path, *names: str) -> Path:
    for name in names:
        (place / name).mkdir(parents=True)
        (place / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: About {name}.\n---\nBody.\n")
    return place


async def prefixes(place: Path, *, turned: bool) -> list[tuple[bytes, str | None]]:
    """What two runs of an agent send, in an engine of their own."""
    early, late = Server("a", "a1", "a2"), Server("b", "b1", "b2", disclosure="lazy")
    model = ScriptedModel([calls("a1"), calls("tool_search", names=["b1"]), calls("b1"), "Done."])
    options: dict[str, Any] = {"limits": Limits(loop_soft=0)}
    agent = Agent(model, instructions="Be brief.", tools=[early, late, skills(place)], **options)
    first, second = (late, early) if turned else (early, late)

    async def answer() -> None:
        first.after.set()
        await first.answered.wait()
        second.after.set()

    async with asyncio.timeout(PATIENCE_S), Engine() as engine, asyncio.TaskGroup() as group:
        group.create_task(answer())
        await agent.run("Go.", engine=engine)
        await agent.run("Go.", engine=engine)
    return [prefix(request) for request in model.requests]


@pytest.mark.requirement("loop.cache.stable_prefix")
async def test_prefix_changes_only_once_for_a_found_tool(
    tmp_path: Path,
) -> None:
    one = await prefixes(shelf(tmp_path / "1", "alpha", "beta"), turned=False)
    other = await prefixes(shelf(tmp_path / "2", "beta", "alpha"), turned=True)
    assert one == other
    assert one[:4] == one[4:], "the next run sends the same"
    assert one[0] == one[1] != one[2] == one[3], "a tool that was found changes the list once"
    assert one[0][1] == one[2][1], "and never the instructions"
    assert one[0][1] is not None and one[0][1].index("alpha") < one[0][1].index("beta")


@pytest.mark.requirement("loop.cache.stable_prefix")
async def test_prefix_of_run_is_same_after_restart(tmp_path: Path) -> None:
    place = shelf(tmp_path / "skills", "alpha", "beta")
    model = ScriptedModel([calls("ask_user", question="Well?"), "Done."])

    def opened(*, turned: bool) -> Agent:
        servers = Server("a", "a1", "a2"), Server("b", "b1", "b2", disclosure="lazy")
        for one in reversed(servers) if turned else servers:
            one.after.set()
        return Agent(model, name="same", instructions="Be brief.", tools=[*servers, skills(place), ask_user])

    async with asyncio.timeout(PATIENCE_S):
        agent = opened(turned=False)
        async with Engine(tmp_path / "data", agents=[agent]) as engine:
            run = await engine.start(agent, "Go.")
            await anext(event async for event in run if isinstance(event, AwaitOpened))
        async with Engine(tmp_path / "data", agents=[opened(turned=True)]) as engine:
            (asked,) = await engine.awaits()
            run = engine.attach(asked.run_id)
            await run.answer(asked.id, "Yes.")
            await run.result()
    before, after = [prefix(request) for request in model.requests]
    assert before == after
