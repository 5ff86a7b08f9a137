"""What A2A agents and MCP servers answer, read with bounds: the same for tools of the server and of the client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from weftline.text.json_size import is_modest

if TYPE_CHECKING:
    from mcp import Client

logger = logging.getLogger(__name__)


Fields: TypeAlias = dict[str, object]

UNDER_WAY = frozenset({"submitted", "working"})
FAILED = frozenset({"failed", "rejected", "canceled", "cancelled", "auth-required"})
WAITS = "input-required"
_STATES = UNDER_WAY | FAILED | {WAITS, "completed"}
_A2A_EXCERPT_CHARS = 1000


def unwrapped(result: Fields) -> Fields:
    """Returns the task or the message itself; revision 1.0 wraps it as `{"task": …}` or `{"message": …}`."""
    for wrapper in ("task", "message"):
        inner = result.get(wrapper)
        if isinstance(inner, dict) and "parts" not in result and "status" not in result:
            return cast(Fields, inner)
    return result


def state_of(result: Mapping[str, object]) -> str:
    """Returns the state of a task as in revision 0.3; empty for a message, "unknown" for an unknown state."""
    status = result.get("status")
    state = cast(Fields, status).get("state") if isinstance(status, dict) else None
    spelled = str(state or "").lower().removeprefix("task_state_").replace("_", "-")
    return spelled if not spelled or spelled in _STATES else "unknown"


def answer_text(result: Mapping[str, object]) -> str | None:
    """Returns the text of a message's parts, or a task's status message and then its artifacts.

    An answer that an agent put in both places is returned once. If there is no text at all, returns the data in the
    same places as JSON, and files by name.
    """
    status = result.get("status")
    message = cast(Fields, status).get("message") if isinstance(status, dict) else None
    message_parts = _parts(cast(Fields, message).get("parts")) if isinstance(message, dict) else []
    made = [part for artifact in objects(result.get("artifacts")) for part in _parts(artifact.get("parts"))]
    result_parts = _parts(result.get("parts"))
    text = _read(result_parts, _text)
    if text is not None:
        return text
    message_text, artifact_text = _read(message_parts, _text), _read(made, _anything)
    if message_text is not None and artifact_text is not None and _is_same(message_text, artifact_text):
        return artifact_text
    both = [text for text in (message_text, artifact_text) if text is not None]
    if both:
        return "\n".join(both)
    return _read(result_parts, _in_words) or _read(message_parts, _in_words)


def _is_same(message: str, made: str) -> bool:
    """Returns True if two texts are the same answer; data is compared regardless of its formatting."""
    if message.strip() == made.strip():
        return True
    if not made.startswith(("{", "[")) or not is_modest(message) or not is_modest(made):
        return False
    try:
        return msgspec.json.decode(message) == msgspec.json.decode(made)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _read(parts: Iterable[Fields], one: Callable[[Fields], str | None]) -> str | None:
    found = [text for part in parts if (text := one(part)) is not None]
    return "\n".join(found) if found else None


def _text(part: Fields) -> str | None:
    text = part.get("text")
    return text if isinstance(text, str) else None


def _in_words(part: Fields) -> str | None:
    if part.get("data") is not None:
        return msgspec.json.encode(part["data"]).decode()
    file = cast(Fields, part["file"]) if isinstance(part.get("file"), dict) else part
    named = [file.get(name) for name in ("name", "filename", "mimeType", "mediaType", "uri", "url")]
    names = [one[:_A2A_EXCERPT_CHARS] for one in named if isinstance(one, str) and one]
    return f"[file: {', '.join(names)}]" if names else None


def _anything(part: Fields) -> str | None:
    text = _text(part)
    return _in_words(part) if text is None else text


def _parts(value: object) -> list[Fields]:
    inner = [part.get("root", part) for part in objects(value)]
    return [cast(Fields, part) for part in inner if isinstance(part, dict)]


def objects(value: object) -> list[Fields]:
    """Returns the objects of a list, without anything else in it."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast(Fields, item) for item in items if isinstance(item, dict)]


_MCP_EXCERPT_CHARS = 100
_MAX_ITEMS = 5000
"""The most items that are checked one by one; a longer response is refused as a whole."""


def unreadable_block(kind: object) -> str:
    named = f" of type {kind[:_MCP_EXCERPT_CHARS]!r}" if isinstance(kind, str) else ""
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
        label = repr(redact(name[:_MCP_EXCERPT_CHARS])) if isinstance(name, str) else "without a name"
        logger.warning("the MCP server %s lists a malformed tool, which is left out: %s", server, label)

    def task_only(name: str) -> None:
        _note_task_only(server, redact(name[:_MCP_EXCERPT_CHARS]))

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
