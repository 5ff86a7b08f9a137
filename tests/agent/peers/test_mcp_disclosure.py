"""Tools of MCP servers that are withheld until the model looks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from weftline import Agent, Engine, tool
from weftline.behaviors import Behavior
from weftline.testing import calls

from .small import Small, model, offered


@tool
def own(what: str) -> str:
    """The agent's own."""
    return what


@pytest.mark.requirement("loop.disclosure.partition")
@pytest.mark.parametrize(
    ("agents", "servers", "lazy"),
    [("eager", None, False), ("lazy", None, True), ("eager", "lazy", True), ("lazy", "eager", False)],
)
async def test_a_servers_word_on_disclosure_goes_before_the_agents(
    tmp_path: Path, agents: Literal["eager", "lazy"], servers: Any, lazy: bool
) -> None:
    small = Small(tmp_path, disclosure=servers, only=["look"])
    behavior = Behavior(tool_disclosure=agents)
    scripted = model()
    async with Engine() as engine:
        await Agent(scripted, tools=[small.tools, own], behavior=behavior).run("Go.", engine=engine)
    assert sorted(offered(scripted)) == (["own", "tool_search"] if lazy else ["own", "small__look"])
    assert ("small__look" in (scripted.requests[0].system or "")) is lazy


async def test_a_tool_that_was_found_is_called_at_its_server(tmp_path: Path) -> None:
    small = Small(tmp_path, disclosure="lazy")
    scripted = model(
        calls("small__look", what="too early"),
        calls("tool_search", server="small", query="look"),
        calls("small__look", what="found"),
    )
    async with Engine() as engine:
        result = await Agent(scripted, tools=[small.tools]).run("Go.", engine=engine)
    assert result.calls[0].result.startswith("Blocked: ")
    assert result.calls[2].result == "look: found"
    assert small.calls == ["look found"]
