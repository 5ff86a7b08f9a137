"""What an A2A agent answered, in words: the same for agents that the server asks and for those that a client asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, cast

import msgspec

from weftline.json_size import is_modest

Fields: TypeAlias = dict[str, object]

UNDER_WAY = frozenset({"submitted", "working"})
FAILED = frozenset({"failed", "rejected", "canceled", "cancelled", "auth-required"})
WAITS = "input-required"
_STATES = UNDER_WAY | FAILED | {WAITS, "completed"}
_EXCERPT_CHARS = 1000


def unwrapped(result: Fields) -> Fields:
    """The task or the message itself: revision 1.0 answers `{"task": …}` or `{"message": …}`."""
    for wrapper in ("task", "message"):
        inner = result.get(wrapper)
        if isinstance(inner, dict) and "parts" not in result and "status" not in result:
            return cast(Fields, inner)
    return result


def state_of(result: Mapping[str, object]) -> str:
    """The state of a task in the words of revision 0.3; "" of a message, "unknown" for one that there is not."""
    status = result.get("status")
    state = cast(Fields, status).get("state") if isinstance(status, dict) else None
    spelled = str(state or "").lower().removeprefix("task_state_").replace("_", "-")
    return spelled if not spelled or spelled in _STATES else "unknown"


def answer_text(result: Mapping[str, object]) -> str | None:
    """The text of a message's parts; of a task, its status message and then everything in its artifacts. Agents that
    put their answer in both places are heard once.

    If there is no text anywhere, the data in the same places, as JSON, and files by their names.
    """
    status = result.get("status")
    message = cast(Fields, status).get("message") if isinstance(status, dict) else None
    message_parts = _parts(cast(Fields, message).get("parts")) if isinstance(message, dict) else []
    made = [part for artifact in _objects(result.get("artifacts")) for part in _parts(artifact.get("parts"))]
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
    """Whether two texts are the same answer; data is the same however it is written."""
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
    inner = [part.get("root", part) for part in _objects(value)]
    return [cast(Fields, part) for part in inner if isinstance(part, dict)]


def _objects(value: object) -> list[Fields]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast(Fields, item) for item in items if isinstance(item, dict)]
