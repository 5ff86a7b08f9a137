"""What a tool declares about being run again, whatever its kind."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pydantic import ValidationError

import weftline
from weftline.cases.tools import ToolModel
from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.text.redaction import Redactor
from weftline.tools.base import Tool
from weftline.tools.http import HttpSpec, HttpTool
from weftline.tools.mcp.address import McpAddress
from weftline.tools.mcp.tools import McpTool, _entry  # pyright: ignore[reportPrivateUsage]
from weftline.tools.peers import a2a
from weftline.tools.stored_code import CodeSpec, StoredCodeTool

NOBODY = Redactor.of_request("https://example.com", {})


def look() -> str:
    """Looks."""
    return ""


async def tools_of(word: Any) -> dict[str, Tool]:
    """A tool of each kind that declares this effect, or nothing."""
    given = {} if word is None else {"effect": word}
    dialer = Dialer(Egress("public"))
    peer = a2a("https://peer.example.com", **given)
    (agent,) = await peer.open()
    await peer.close()
    hints = {"read": {"readOnlyHint": True}, "idempotent": {"idempotentHint": True}}.get(word or "")
    http = HttpTool(HttpSpec("post", "https://example.com", method="POST", **given), secrets={}, dialer=dialer)
    code = StoredCodeTool(CodeSpec("run", "export default 1;", **given), secrets={}, sandbox=cast(Any, None))
    mcp = McpTool(
        "look", _entry(_listed(hints), NOBODY), pool=cast(Any, None), address=McpAddress(1, "https://example.com", ())
    )
    return {"function": weftline.tool(**given)(look), "http": http, "code": code, "a2a": agent, "mcp": mcp}


async def effects(word: Any) -> dict[str, str]:
    return {kind: tool.effect for kind, tool in (await tools_of(word)).items()}


def _listed(hints: dict[str, bool] | None) -> Any:
    from mcp.types import Tool

    return Tool.model_validate({"name": "look", "inputSchema": {"type": "object"}, "annotations": hints})


@pytest.mark.requirement("run.effect.declared")
async def test_tool_has_its_declared_effect_or_once() -> None:
    kinds = ("function", "http", "code", "a2a", "mcp")
    for word in ("read", "idempotent", "once"):
        assert await effects(word) == dict.fromkeys(kinds, word)
    assert await effects(None) == dict.fromkeys(kinds, "once")


@pytest.mark.parametrize(("word", "together"), [("read", True), ("idempotent", False), ("once", False), (None, False)])
async def test_a_tool_of_any_kind_that_reads_runs_beside_others(word: Any, together: bool) -> None:
    tools = await tools_of(word)
    assert tools.pop("a2a").concurrent  # its messages belong to conversations of their own
    assert {kind: tool.concurrent for kind, tool in tools.items()} == dict.fromkeys(tools, together)


def test_a_function_says_otherwise() -> None:
    assert not weftline.tool(effect="read", concurrent=False)(look).concurrent
    assert weftline.tool(effect="once", concurrent=True)(look).concurrent


@pytest.mark.requirement("run.effect.declared")
@pytest.mark.parametrize("word", ["twice", "reconcile"])
def test_reconcile_option_must_be_valid_at_definition(word: Any) -> None:
    with pytest.raises(ValueError, match="effect"):
        weftline.tool(effect=word)(look)
    with pytest.raises(ValueError, match="effect"):
        a2a("https://peer.example.com", effect=word)
    for kind in ({"url": "https://example.com"}, {"kind": "code", "code": "export default 1;"}):
        with pytest.raises(ValidationError, match="effect"):
            ToolModel.model_validate({"name": "look", "effect": word, **kind})
