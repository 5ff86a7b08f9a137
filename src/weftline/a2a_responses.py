"""Reads the responses of A2A agents, for both the server and the client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, cast

import msgspec

from weftline.text.json_size import is_modest

Fields: TypeAlias = dict[str, object]

UNDER_WAY = frozenset({"submitted", "working"})
FAILED = frozenset({"failed", "rejected", "canceled", "cancelled", "auth-required"})
WAITS = "input-required"
_STATES = UNDER_WAY | FAILED | {WAITS, "completed"}
_EXCERPT_CHARS = 1000


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
    names = [one[:_EXCERPT_CHARS] for one in named if isinstance(one, str) and one]
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
