from __future__ import annotations

from typing import Any

import pytest

from runtime.kit import MoodyStore, ended, engine_on, plan
from weftline.messages import Image, Text, ToolResult, ToolResults
from weftline.plan import ServerRef
from weftline.store.memory import MemoryDisk
from weftline.tools.decorator import tool


@tool(effect="read")
def words() -> str:
    """Returns text."""
    return "words"


@tool(effect="read")
def picture() -> list[Text | Image]:
    """Returns text and an image."""
    return [Text("a cat"), Image("image/png", data="aGk=")]


@tool(effect="read")
def nothing_of_the_kind() -> object:
    """Returns what cannot be written down."""
    return {"when": object()}


@pytest.mark.requirement("tool.result.shapes")
async def test_tool_returns_text_parts_or_json() -> None:
    names = ("words", "picture", "nothing_of_the_kind")
    turns: list[Any] = [{"tool_calls": [{"name": name, "args": {}} for name in names]}, {"text": "done"}]
    tools = {"words": words, "picture": picture, "nothing_of_the_kind": nothing_of_the_kind}
    it, model = engine_on(MoodyStore(MemoryDisk()), {"work": {"turns": turns}}, tools=tools)
    async with it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("work", *map(ServerRef, names)))
        assert (await ended(it, run_id, space)).status == "succeeded"
    results: list[ToolResult] = []
    for message in model.requests[-1].messages:
        if isinstance(message, ToolResults):
            results += message.results
    assert [result.is_error for result in results] == [False, False, True]
    assert [result.parts for result in results[:2]] == [
        (Text("words"),),
        (Text("a cat"), Image("image/png", data="aGk=")),
    ]
    assert "nothing_of_the_kind has run, but its result cannot be shown" in results[2].text
