"""Errors for clients: the body of every response that is not 2xx, and its code."""

from __future__ import annotations

from typing import Any

from msgspec.json import Encoder

from weftline.errors import TABLE, WeftlineError
from weftline.text.suggestions import sentence
from weftline.wire.responses import iso

_encode = Encoder(enc_hook=str).encode
_CODES = {"unknown_call": "unknown_tool_use", "thread_ended": "session_ended"}
_FIXED = frozenset({"code", "message", "hint", "requestId"})
_SENTENCES = frozenset({"unauthorized", "forbidden", "api_keys_plan", "oauth_apps_plan"})
"""Codes whose `error` is a sentence for people, as older clients show that field."""


def wire_code(code: str) -> str:
    """The protocol's name for one of our codes. Most have the same name."""
    return _CODES.get(code, code)


def error_body(err: WeftlineError, request_id: str) -> bytes:
    """Returns the body of any response that is not 2xx.

    `error` is the code, as most clients expect, except where they have always shown it to people; a detail named
    `error` overrides it. Existing clients show `error` and `hint` but not `message`, so if `error` is the code, the
    hint begins with the message. The other details become fields of the body, in camelCase.
    """
    row = TABLE.get(err.code)
    code = wire_code(err.code)
    hint = err.hint or (row.remedy if row else "")
    message = err.message or hint or code
    has_sentence = err.code in _SENTENCES or "correctSlug" in err.details or "correct_slug" in err.details
    body: dict[str, Any] = {"error": message if has_sentence else code, "code": code, "message": message}
    if hint:
        body["hint"] = hint if has_sentence or hint == message else f"{sentence(message)} {hint}"
    if request_id:
        body["requestId"] = request_id
    for name, value in err.details.items():
        key = _camel(name)
        if key not in _FIXED:
            body[key] = iso(value) if name.endswith("_at") and isinstance(value, int) else value
    return _encode(body)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
