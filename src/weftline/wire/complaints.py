"""What pydantic says about a value, in the words of somebody who sent JSON."""

from __future__ import annotations

from weftline.wire.limits import URL_PATTERN

_JSON_WORDS = {
    "dict_type": "must be a JSON object",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
    "list_type": "must be a JSON array",
}
_NUL = r"[^\x00]*"


def complaint(kind: str, message: str) -> str:
    """`kind` and `message` are the type and the text of one of pydantic's errors."""
    if kind == "string_pattern_mismatch":
        if URL_PATTERN in message:
            return "must be an http or https address"
        if message.endswith(f"'^{_NUL}$'"):
            return "must not contain a NUL character"
    return _JSON_WORDS.get(kind, message)
