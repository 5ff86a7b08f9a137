"""What clients read when something is wrong: the body of every response that is not 2xx, in their words."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.json import Encoder, encode

from weftline.errors import LOG_DAMAGED, TABLE, Forbidden, InvalidRequest, StoreError, WeftlineError, renamed
from weftline.spec.declare import fields_of
from weftline.spec.fields import RunSpec
from weftline.text.suggestions import sentence
from weftline.wire.responses import iso
from weftline.wire.unknown_fields import UnknownField, with_typos

_encode = Encoder(enc_hook=str).encode
_CODES = {"unknown_call": "unknown_tool_use", "thread_ended": "session_ended"}
_FIXED = frozenset({"code", "message", "hint", "requestId"})
_SENTENCES = frozenset({"unauthorized", "forbidden", "api_keys_plan", "oauth_apps_plan"})
"""Codes whose `error` is a sentence for people, as older clients show that field."""


def wire_code(code: str, *, path: str = "") -> str:
    """The protocol's name for one of our codes. Most have the same name; all have at the paths of threads."""
    return code if "/threads" in path else _CODES.get(code, code)


def error_body(err: WeftlineError, request_id: str, *, path: str = "") -> bytes:
    """Returns the body of any response that is not 2xx.

    `error` is the code, as most clients expect, except where they have always shown it to people; a detail named
    `error` overrides it. Existing clients show `error` and `hint` but not `message`, so if `error` is the code, the
    hint begins with the message. The other details become fields of the body, in camelCase.
    """
    row = TABLE.get(err.code)
    code = wire_code(err.code, path=path)
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


_FIELDS: Final = {one.name: one.wire for one in fields_of(RunSpec)} | {
    "agent_ids": "agentIds",
    "api_key": "apiKey",
    "base_url": "baseUrl",
    "catch_up": "catchUp",
    "client_credentials": "allowsClientCredentials",
    "delay_ms": "delayMs",
    "mime_type": "mimeType",
    "redirect_uris": "redirectUris",
    "scopes": "allowedScopes",
    "stop": "stopSequences",
    "timeout_s": "timeoutMs",
}
"""Our names of fields, where the protocol has others."""
_FIRST_NAME = re.compile(r"\w+")
_NAME_IN_HINT = re.compile(r"\b[a-z]+_[a-z_]+\b")


@contextmanager
def client_names(unknown: Sequence[UnknownField] = ()) -> Generator[None]:
    """Whatever is refused inside is refused with the names of the client's fields, as by `as_sent`."""
    try:
        yield
    except (InvalidRequest, Forbidden) as error:
        raise as_sent(error, unknown) from None


def as_sent(error: WeftlineError, unknown: Sequence[UnknownField] = ()) -> WeftlineError:
    """Returns the refusal with the names of the client's fields, and with unknown fields that may be its cause."""
    if error.hint:
        error.hint = _NAME_IN_HINT.sub(_wire_name, error.hint)
    if not isinstance(error, InvalidRequest):
        return error
    return with_typos(renamed(error, _wire_path), unknown)


def _wire_path(path: str) -> str:
    return _FIRST_NAME.sub(_wire_name, path, count=1)


def _wire_name(found: re.Match[str]) -> str:
    return _FIELDS.get(found[0], found[0])


def unreadable(run_id: str) -> StoreError:
    return StoreError(f"The log of run {run_id} is damaged: its first or last entry cannot be read.", code=LOG_DAMAGED)


def row_damaged(run_id: str, column: str) -> StoreError:
    return StoreError(f"The run {run_id} is damaged: its {column} cannot be read.", code=LOG_DAMAGED)


def session_damaged(session_id: str, what: str) -> StoreError:
    return StoreError(f"The session {session_id} is damaged: {what} cannot be read.", code=LOG_DAMAGED)


def unreadable_event(error: WeftlineError) -> tuple[str, bytes]:
    """Returns the event for an unreadable entry: damaged, or an end that only newer code can read. It is the last of
    its stream.
    """
    payload = {"error": error.message, "code": error.code, "errorClass": "unknown", "retryable": False}
    return "error", encode(payload)


def error_code(damaged: str) -> str | UnsetType:
    """Returns the error code of a list item; `damaged` is its unreadable column, if there is one."""
    return LOG_DAMAGED if damaged else UNSET
