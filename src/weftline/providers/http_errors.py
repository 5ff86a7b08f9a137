"""Interprets failed responses of model APIs: their class, code and message, and when to retry."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from weftline.net.address import display_url
from weftline.providers.base import ErrorClass, ProviderError
from weftline.text.json_size import excess
from weftline.text.redaction import Redactor
from weftline.text.suggestions import sentence

MAX_MESSAGE_CHARS: Final = 2_000


class ErrorDetail(Struct, frozen=True):
    """The details of an error response. `status` is None for an error inside a stream without one."""

    status: int | None
    code: str | None
    """The provider's own code or type, verbatim."""
    message: str
    body: bytes


Hook = Callable[[ErrorDetail], ErrorClass | None]
"""A family's own rule, which comes first; None leaves the decision to the common rules."""

_CONTEXT = re.compile(
    r"prompt is too long|too many (?:input |total )?tokens|context[ _-]?(?:length|window|limit)|maximum context"
    r"|(?:input|prompt|request)[^.]{0,40} too (?:long|large)|(?:input|prompt)[^.]{0,40} exceeds?[^.]{0,40} tokens?"
    r"|input token count|reduce the length of",
    re.IGNORECASE,
)
_MODEL = re.compile(r"model|deployment", re.IGNORECASE)
"""What is not there, if the server knows this path."""
_CONTEXT_CODES = frozenset({"context_length_exceeded", "request_too_large", "string_above_max_length"})
_BY_CODE: dict[str, ErrorClass] = {
    "rate_limit_error": "rate_limit",
    "rate_limit_exceeded": "rate_limit",
    "insufficient_quota": "rate_limit",
    "resource_exhausted": "rate_limit",
    "overloaded_error": "overloaded",
    "overloaded": "overloaded",
    "unavailable": "overloaded",
    "service_unavailable": "overloaded",
    "slow_down": "overloaded",
    "api_error": "server",
    "server_error": "server",
    "internal_error": "server",
    "internal_server_error": "server",
    "internal": "server",
    "authentication_error": "auth",
    "permission_error": "auth",
    "invalid_api_key": "auth",
    "unauthenticated": "auth",
    "permission_denied": "auth",
    "timeout_error": "timeout",
    "deadline_exceeded": "timeout",
    "invalid_request_error": "invalid_request",
    "invalid_argument": "invalid_request",
    "failed_precondition": "invalid_request",
    "not_found_error": "invalid_request",
    "not_found": "invalid_request",
    "model_not_found": "invalid_request",
}
_REFUSED = frozenset({400, 404, 405, 413, 415, 422})


def classify(
    status: int | None,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    hook: Hook | None = None,
    secrets: Sequence[str] = (),
    url: str = "",
    not_found: str = "Is this the address of the model API?",
) -> ProviderError:
    """Returns the error for a failed response, or (with `status` None) for an error inside a stream.

    `secrets`, and those in `url`, are redacted from the message and the code: some APIs echo the key that they refuse.
    The error for a 404 names `url`; if the server does not say what is missing, it ends with `not_found`.
    """
    detail = read_detail(status, body, secrets=(*secrets, *secrets_of(url)))
    message = detail.message
    if status == 404 and url:
        message = f"{sentence(message)} 404 for {display_url(url)}."
        if not _MODEL.search(detail.message):
            message = f"{message} {not_found}"
    return ProviderError(
        (hook(detail) if hook else None) or _class_of(detail),
        message,
        status=detail.status,
        code=detail.code,
        retry_after_s=_retry_after_s(headers or {}, body),
    )


def read_detail(status: int | None, body: bytes, *, secrets: Sequence[str] = ()) -> ErrorDetail:
    """Reads the shapes that model APIs use: `{error: {…}}`, `{error: "…"}`, `[{error: …}]`, `{message: …}` or text."""
    error = _error_object(body)
    code: str | None = None
    message = ""
    for field in ("code", "type", "status"):
        value = error.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            status = value if status is None and 400 <= value <= 599 else status
            code = code or str(value)
        elif isinstance(value, str) and value and (code is None or code.isdigit()):
            code = value
    for field in ("message", "detail", "error_description"):
        value = error.get(field)
        if isinstance(value, str) and value:
            message = value
            break
    metadata = error.get("metadata")
    raw = cast("dict[str, Any]", metadata).get("raw") if isinstance(metadata, dict) else None
    if isinstance(raw, str) and raw:
        message = f"{message}: {raw}" if message else raw
    if not message and not error:
        text = body[: 4 * MAX_MESSAGE_CHARS].decode("utf-8", "replace").strip()
        message = "" if text.startswith("<") else text
    if not message:
        message = "The model API reported an error." if status is None else f"The model API responded with {status}."
    return ErrorDetail(
        status=status,
        code=None if code is None else redact(code, secrets)[:200],
        message=redact(message, secrets)[:MAX_MESSAGE_CHARS],
        body=body,
    )


def secrets_of(url: str) -> Sequence[str]:
    """Returns what is secret in an address: credentials, and tokens in its query."""
    return Redactor.of_request(url, {}).secrets if "@" in url or "?" in url else ()


def redact(text: str, secrets: Sequence[str]) -> str:
    return Redactor(secrets).text(text)


def _error_object(body: bytes) -> dict[str, Any]:
    if excess(body):
        return {}
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if isinstance(value, list):
        value = next(iter(cast("list[Any]", value)), None)
    if not isinstance(value, dict):
        return {}
    outer = cast("dict[str, Any]", value)
    inner = outer.get("error")
    if isinstance(inner, dict):
        return cast("dict[str, Any]", inner)
    if isinstance(inner, str):
        return {"message": inner, **outer}
    return outer


def _class_of(detail: ErrorDetail) -> ErrorClass:
    status, code = detail.status, (detail.code or "").lower()
    by_code = _BY_CODE.get(code)
    overloaded = by_code == "overloaded" or "overloaded" in detail.message.lower()
    if status is None:
        if code in _CONTEXT_CODES or (by_code in (None, "invalid_request") and _CONTEXT.search(detail.message)):
            return "context_window"
        return by_code or ("overloaded" if overloaded else "unknown")
    if status == 429:
        return "rate_limit"
    if status in (503, 529) or (overloaded and status not in (401, 403)):
        return "overloaded"
    if status >= 500:
        return "server"
    if status in (401, 403):
        return "auth"
    if status == 408:
        return "timeout"
    if status == 413 or (status in _REFUSED and (code in _CONTEXT_CODES or _CONTEXT.search(detail.message))):
        return "context_window"
    return "invalid_request" if status in _REFUSED else "unknown"


_RETRY_DELAY = re.compile(rb'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"')


def _retry_after_s(headers: Mapping[str, str], body: bytes) -> float | None:
    lowered = {name.lower(): value.strip() for name, value in headers.items()}
    milliseconds = _number(lowered.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = lowered.get("retry-after")
    if value:
        seconds = _number(value)
        return seconds if seconds is not None else _until(value, lowered.get("date"))
    in_body = _RETRY_DELAY.search(body)
    return float(in_body[1]) if in_body else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return max(value, 0.0) if math.isfinite(value) else None


def _until(date: str, now: str | None) -> float | None:
    """Returns the seconds until `date`, from the response's own date or else this machine's clock."""
    try:
        start = parsedate_to_datetime(now).timestamp() if now else time.time()
        return max(parsedate_to_datetime(date).timestamp() - start, 0.0)
    except ValueError:
        return None
