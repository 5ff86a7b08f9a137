"""Errors of the client.

    ClientError
    ├── InvalidSpec (ValueError)   the call itself is wrong; nothing was sent
    ├── NetworkError               no usable answer: refused, cut, timed out, and the retries are used up
    │   └── Unreachable            the request did not reach a server
    ├── ApiError                   the server answered with a status other than 2xx
    │   ├── BadRequest             400, 413, 422
    │   ├── AuthError              401
    │   ├── Forbidden              403
    │   │   └── ScopeError         403 insufficient_scope; `required_scopes`
    │   ├── NotFound               404
    │   ├── Conflict               409
    │   ├── RateLimited            429; `retry_after_s`
    │   └── ServerError            5xx
    ├── RunFailed                  the run ended without success
    ├── RunCancelled               the run was cancelled
    │   └── DeadlineExceeded       by this client, because `deadline_s` had passed
    ├── ToolDeliveryError          the answer to a tool call could not be delivered
    ├── ToolError                  raised by a tool handler: its text is what the model reads
    ├── ParseError (ValueError)    the final text is not what `output_type` or `parse_output` asked for
    ├── OAuthError                 the authorization server refused the request
    └── InvalidSignature           a webhook's request is not from the server, or too old

Match on the class or on `code`, never on the message.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from msgspec import Struct

from weftline.events.decode import lenient

if TYPE_CHECKING:
    from weftline.client.usage import CancelReceipt, Tokens
    from weftline.events import ModelUsed
    from weftline.failure import FailureKind, Hint, Recovery


class ClientError(Exception):
    """The root of every error that this client raises on purpose.

    `run_id` is set if the error is about a run: you can still `attach` to one that could not be followed to its end.
    """

    run_id: str = ""


class InvalidSpec(ClientError, ValueError):
    """The request cannot be sent as it is."""


class NetworkError(ClientError):
    """The server could not be reached, or its response broke off."""


class Unreachable(NetworkError):
    """The request did not reach a server."""


class ApiError(ClientError):
    """A response that is not 2xx. `body` is the raw response; `request_id` identifies it in the server's log."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str = "",
        hint: str | None = None,
        candidates: tuple[str, ...] = (),
        required_scopes: tuple[str, ...] = (),
        correct_slug: str | None = None,
        retry_after_s: float | None = None,
        request_id: str | None = None,
        body: bytes = b"",
    ) -> None:
        text = f"{status} {code}: {message}" if code and code != message else f"{status}: {message}"
        super().__init__(text if correct_slug is None else f"{text}; it belongs to the workspace {correct_slug!r}")
        self.message = message
        self.status = status
        self.code = code
        self.hint = hint
        self.candidates = candidates
        self.required_scopes = required_scopes
        self.correct_slug = correct_slug
        self.retry_after_s = retry_after_s
        self.request_id = request_id
        self.body = body


class BadRequest(ApiError):
    """400: the request is wrong; the message names the field."""


class AuthError(ApiError):
    """401: the credential is missing or invalid."""


class Forbidden(ApiError):
    """403: the credential may not do this."""


class ScopeError(Forbidden):
    """403: the access token lacks the scopes in `required_scopes`."""


class NotFound(ApiError):
    """404: unknown, or in another workspace (`correct_slug`)."""


class Conflict(ApiError):
    """409 or 410: not possible in the current state."""


class RateLimited(ApiError):
    """429: too many requests; `retry_after_s` says when to try again."""


class ServerError(ApiError):
    """5xx: the server failed or is not accepting requests."""


class RunFailed(ClientError):
    """A run that ended without success.

    `subtype` is that of a failing `result` (`error_max_tool_turns` …) or `error`. `error_class` is the server's value,
    even one that this client does not know. `partial_text` is what the model had written when it was interrupted; it is
    not an answer. `retryable` is None if the server did not say.
    """

    def __init__(
        self,
        message: str,
        *,
        run_id: str,
        subtype: str = "error",
        code: str | None = None,
        error_class: str | None = None,
        finish_reason: str | None = None,
        partial_text: str | None = None,
        retryable: bool | None = None,
        tokens: Tokens | None = None,
        turns: int = 0,
        model: ModelUsed | None = None,
        attempts: int = 0,
        cost_usd: float | None = None,
        usage_estimated: bool = False,
    ) -> None:
        super().__init__(f"run {run_id} failed ({error_class or subtype}): {message}")
        self.message = message
        self.run_id = run_id
        self.subtype = subtype
        self.code = code
        self.error_class = error_class
        self.finish_reason = finish_reason
        self.partial_text = partial_text
        self.retryable = retryable
        self.tokens = tokens
        self.turns = turns
        self.model = model
        self.attempts = attempts
        self.cost_usd = cost_usd
        self.usage_estimated = usage_estimated


class RunCancelled(ClientError):
    """A run that was cancelled, by anyone. `cancel_receipt` is set if this handle cancelled it."""

    def __init__(
        self,
        run_id: str,
        *,
        reason: str = "user",
        tokens: Tokens | None = None,
        turns: int = 0,
        model: ModelUsed | None = None,
        attempts: int = 0,
        cost_usd: float | None = None,
        usage_estimated: bool = False,
        cancel_receipt: CancelReceipt | None = None,
    ) -> None:
        super().__init__(f"run {run_id} was cancelled ({reason})")
        self.run_id = run_id
        self.reason = reason
        self.tokens = tokens
        self.turns = turns
        self.model = model
        self.attempts = attempts
        self.cost_usd = cost_usd
        self.usage_estimated = usage_estimated
        self.cancel_receipt = cancel_receipt


class DeadlineExceeded(RunCancelled, TimeoutError):
    """The run was still going when its `deadline_s` passed, and was cancelled."""


class ToolDeliveryError(ClientError):
    """The server did not accept the answer to a tool call; the run may wait for it until the call times out."""

    def __init__(self, message: str, *, run_id: str, tool_use_id: str, cause: Exception) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.tool_use_id = tool_use_id
        self.cause = cause


class ToolError(ClientError):
    """Raise this in a tool to tell the model, in your own words, why the call failed.

    `kind`, `recovery` and `hint` are those of a `weftline.ToolFailed`.
    """

    def __init__(
        self,
        message: str = "",
        *,
        kind: FailureKind | None = None,
        recovery: Recovery | None = None,
        hint: Hint | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.recovery = recovery
        self.hint = hint


class ParseError(ClientError, ValueError):
    """The final text is not JSON, or JSON of another shape. `text` is the text as the model wrote it."""

    def __init__(self, message: str, *, text: str) -> None:
        super().__init__(message)
        self.text = text


class OAuthError(ClientError):
    """The authorization server refused the request.

    `error` is the protocol's code (`invalid_grant`, `invalid_client` …).
    """

    def __init__(self, error: str, description: str = "", *, status: int = 0) -> None:
        super().__init__(f"{error}: {description}" if description else error)
        self.error = error
        self.description = description
        self.status = status


_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: AuthError,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: BadRequest,
    422: BadRequest,
    429: RateLimited,
}


def api_error(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Returns the error for any response, even a proxy's HTML page."""
    try:
        decoded: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoded = None
    fields = cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else {}
    error = _text(fields.get("error"))
    code = _text(fields.get("code")) or error or ""
    message = _text(fields.get("message")) or error or f"the server responded with {status}"
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    if status == 403 and "insufficient_scope" in (code, error):
        kind, code = ScopeError, "insufficient_scope"
    return kind(
        message,
        status=status,
        code=code,
        hint=_text(fields.get("hint")),
        candidates=_texts(fields.get("candidates")),
        required_scopes=_texts(fields.get("required")) or _challenge_scopes(headers.get("WWW-Authenticate", "")),
        correct_slug=_text(fields.get("correctSlug")),
        retry_after_s=retry_after(headers.get("Retry-After")),
        request_id=_text(fields.get("requestId")) or headers.get("X-Request-ID"),
        body=body,
    )


def retry_after(value: str | None) -> float | None:
    """Returns the seconds to wait according to a `Retry-After` header, which has a number or a date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (TypeError, ValueError):
        return None


def _challenge_scopes(challenge: str) -> tuple[str, ...]:
    _, found, rest = challenge.partition('scope="')
    return tuple(rest.partition('"')[0].split()) if found else ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    if isinstance(value, list):
        return tuple(item for item in cast("list[object]", value) if isinstance(item, str))
    return ()


class InvalidSignature(ClientError):
    """The request of a webhook is not from the server that knows the secret, or was sent at another time."""


class RequestWarning(Struct, frozen=True):
    """One of the `warnings` of a response."""

    path: str = ""
    message: str = ""
    code: str = ""
    nearest: str = ""


class Place(NamedTuple):
    """Where the user's code called the client, in the form that `warnings` needs."""

    filename: str
    line: int
    module: str
    registry: dict[Any, Any]


_place: ContextVar[Place | None] = ContextVar("place", default=None)


@contextmanager
def from_here() -> Generator[None]:
    """Attributes the warnings of work started inside, even in another thread, to the code that called the client."""
    token = _place.set(_callers_place())
    try:
        yield
    finally:
        _place.reset(token)


def warn_of(notices: object) -> None:
    """Issues a response's `warnings`, attributed to the code that called the client."""
    for notice in cast("list[object]", notices) if isinstance(notices, list) else ():
        # Another server may use this field for something else.
        known = lenient(notice, RequestWarning)
        if known is not None and known.message:
            place = _place.get() or _callers_place()
            warnings.warn_explicit(
                f"{known.path} {known.message}",
                UserWarning,
                place.filename,
                place.line,
                module=place.module,
                registry=place.registry,
            )


def _callers_place() -> Place:
    """Returns the first frame above this one that is not ours."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame = frame.f_back
    module = frame.f_globals.get("__name__", "")
    return Place(frame.f_code.co_filename, frame.f_lineno, module, frame.f_globals.setdefault(_REGISTRY, {}))


_OURS = ("weftline.client", "contextlib")
_REGISTRY = "__warningregistry__"
