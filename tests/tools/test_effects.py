"""What a tool declares about being run again, whatever its kind."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pydantic import ValidationError

import weftline
from weftline.api.schemas import tools as schemas
from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.text.redaction import Redactor
from weftline.tools.http import HttpSpec, HttpTool
from weftline.tools.mcp.tools import _entry  # pyright: ignore[reportPrivateUsage]
from weftline.tools.peers import a2a
from weftline.tools.stored_code import CodeSpec, StoredCodeTool

NOBODY = Redactor.of_request("https://example.com", {})


def look() -> str:
    """Looks."""
    return ""


async def effects(word: Any) -> dict[str, str]:
    """The effect of a tool of each kind that declares this, or nothing."""
    given = {} if word is None else {"effect": word}
    dialer = Dialer(Egress("public"))
    peer = a2a("https://peer.example.com", **given)
    (agent,) = await peer.open()
    await peer.close()
    hints = {"read": {"readOnlyHint": True}, "idempotent": {"idempotentHint": True}}.get(word or "")
    http = HttpTool(HttpSpec("post", "https://example.com", method="POST", **given), secrets={}, dialer=dialer)
    code = StoredCodeTool(CodeSpec("run", "export default 1;", **given), secrets={}, sandbox=cast(Any, None))
    return {
        "function": weftline.tool(**given)(look).effect,
        "http": http.effect,
        "code": code.effect,
        "a2a": agent.effect,
        "mcp": _entry(_listed(hints), NOBODY).effect,
    }


def _listed(hints: dict[str, bool] | None) -> Any:
    from mcp.types import Tool

    return Tool.model_validate({"name": "look", "inputSchema": {"type": "object"}, "annotations": hints})


@pytest.mark.requirement("run.effect.declared")
async def test_a_tool_of_any_kind_is_what_it_declares_and_once_if_it_declares_nothing() -> None:
    kinds = ("function", "http", "code", "a2a", "mcp")
    for word in ("read", "idempotent", "once"):
        assert await effects(word) == dict.fromkeys(kinds, word)
    assert await effects(None) == dict.fromkeys(kinds, "once")


@pytest.mark.requirement("run.effect.declared")
@pytest.mark.parametrize("word", ["twice", "reconcile"])
def test_another_word_or_nothing_to_reconcile_with_is_refused_when_the_tool_is_defined(word: Any) -> None:
    with pytest.raises(ValueError, match="effect"):
        weftline.tool(effect=word)(look)
    with pytest.raises(ValueError, match="effect"):
        a2a("https://peer.example.com", effect=word)
    for kind in ({"url": "https://example.com"}, {"kind": "code", "code": "export default 1;"}):
        with pytest.raises(ValidationError, match="effect"):
            schemas.ToolModel.model_validate({"name": "look", "effect": word, **kind})
