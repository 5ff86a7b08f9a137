"""Tolerates responses of MCP servers that the official client would refuse as a whole because of one malformed piece.

Unreadable tools are dropped from a list, and unreadable blocks of a result are replaced by a note. Tools that can only
be called as tasks, which we do not do, are dropped too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from mcp import Client

logger = logging.getLogger(__name__)

_EXCERPT_CHARS = 100
_MAX_ITEMS = 5000
"""The most items that are checked one by one; a longer response is refused as a whole."""


def unreadable_block(kind: object) -> str:
    named = f" of type {kind[:_EXCERPT_CHARS]!r}" if isinstance(kind, str) else ""
    return f"[Content{named} that cannot be shown.]"


def read_leniently(client: Client, *, server: str, redact: Callable[[str], str] = str) -> None:
    """Makes an open connection accept the valid parts of a response.

    `server` is for the log, as is what `redact` leaves.
    """
    session = client.session
    # The point where the package returns raw responses, before it validates them.
    dispatcher: Any = getattr(session, "_dispatcher", None)
    if dispatcher is None:
        return
    send_raw = dispatcher.send_raw_request

    def left_out(tool: object) -> None:
        name: object = cast("dict[str, object]", tool).get("name") if isinstance(tool, dict) else None
        label = repr(redact(name[:_EXCERPT_CHARS])) if isinstance(name, str) else "without a name"
        logger.warning("the MCP server %s lists a malformed tool, which is left out: %s", server, label)

    def task_only(name: str) -> None:
        _note_task_only(server, redact(name[:_EXCERPT_CHARS]))

    async def send(method: str, params: Mapping[str, Any] | None, opts: Any = None) -> dict[str, Any]:
        raw: dict[str, Any] = await send_raw(method, params, opts)
        if method == "tools/list":
            return _callable(_readable(method, raw, "tools", session.protocol_version, left_out), task_only)
        if method == "tools/call":
            return _readable(method, raw, "content", session.protocol_version, _described)
        return raw

    dispatcher.send_raw_request = send


def is_closed(client: Client) -> bool:
    """Returns True if the other side has closed the connection."""
    return getattr(getattr(client.session, "_dispatcher", None), "_closed", False)


@lru_cache(maxsize=1024)
def _note_task_only(server: str, tool: str) -> None:
    """Says why a tool is missing, once in a process: the tools of a server are listed by every run."""
    logger.warning(
        "the MCP server %s has a tool that can only be called as a task, which is not supported; it is left out: %r",
        server,
        tool,
    )


def _callable(raw: dict[str, Any], task_only: Callable[[str], None]) -> dict[str, Any]:
    """Returns `raw` without the tools that require to be called as tasks."""
    tools: Any = raw.get("tools")
    if not isinstance(tools, list):
        return raw
    kept: list[Any] = []
    for one in cast("list[Any]", tools):
        fields = _object(one)
        if _object(fields.get("execution")).get("taskSupport") == "required":
            task_only(str(fields.get("name")))
        else:
            kept.append(one)
    return raw | {"tools": kept}


def _object(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _described(block: object) -> dict[str, str]:
    kind = cast("dict[str, object]", block).get("type") if isinstance(block, dict) else None
    return {"type": "text", "text": unreadable_block(kind)}


def _readable(
    method: str,
    raw: dict[str, Any],
    field: str,
    version: str | None,
    instead: Callable[[object], dict[str, str] | None],
) -> dict[str, Any]:
    """Returns `raw` with each invalid item of `field` replaced, or left out if there is no replacement."""
    items = raw.get(field)
    if not isinstance(items, list) or _is_valid(method, raw, version):
        return raw
    items = cast("list[object]", items)
    if len(items) > _MAX_ITEMS or not _is_valid(method, raw | {field: []}, version):
        return raw
    kept: list[object] = []
    for item in items:
        one = item if _is_valid(method, raw | {field: [item]}, version) else instead(item)
        if one is not None:
            kept.append(one)
    return raw | {field: kept}


def _is_valid(method: str, raw: dict[str, Any], version: str | None) -> bool:
    from mcp_types import CallToolResult, ListToolsResult
    from mcp_types.methods import validate_server_result

    model = ListToolsResult if method == "tools/list" else CallToolResult
    try:
        validate_server_result(method, version or "2025-11-25", raw)
        # The package itself handles a question to the client instead of a result.
        if raw.get("resultType", "complete") == "complete":
            model.model_validate(raw, by_name=False)
    except KeyError:
        return True
    except ValueError:  # includes pydantic's
        return False
    return True
