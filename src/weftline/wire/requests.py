"""Results of client-side calls: bytes in, a checked result or an `InvalidRequest` out."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import DecodeError, Meta, Raw, Struct, ValidationError, convert, json
from msgspec.json import encode
from msgspec.structs import fields
from msgspec.structs import fields as fields_of

from weftline.errors import InvalidRequest, Issue, invalid
from weftline.events.parts import WireHint
from weftline.failure import CORRECTABLE, Failure, FailureKind, Recovery, recovery_by, recovery_problem
from weftline.messages import File, Image
from weftline.text.characters import whole_json, without_nul
from weftline.wire.attachments import SentFile, is_files, parts_of
from weftline.wire.json_text import NULL, decode_fields, decode_shape, refuse_many
from weftline.wire.limits import (
    EMPTY_RESULT_USER_AGENT,
    MAX_ERROR_BYTES,
    MAX_FAILURE_BYTES,
    MAX_RESULT_BYTES,
    MAX_TOOL_USE_ID_CHARS,
)
from weftline.wire.unknown_fields import Shape, UnknownField, unknown_fields, with_typos
from weftline.wire.validation import json_words


class SentFailure(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a client reports about an error besides its text."""

    kind: FailureKind | None = None
    recovery: Recovery | None = None
    hint: WireHint | None = None

    def failure(self, text: str) -> Failure:
        recovery = self.recovery
        if recovery is None and self.kind is not None and self.kind not in CORRECTABLE:
            recovery = recovery_by(self.kind)
        return Failure(text, self.kind, recovery, None if self.hint is None else self.hint.hint)


class _ExactHint(WireHint, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    pass


class ExactFailure(SentFailure, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A `SentFailure` that refuses unknown fields."""

    hint: _ExactHint | None = None


FAILURE_SHAPE = Shape(
    frozenset([field.encode_name for field in fields(SentFailure)]),
    {"hint": Shape(frozenset([field.encode_name for field in fields(WireHint)]))},
)


def failure_problem(value: object) -> Issue | None:
    """Returns what is wrong with the shape of a `failure`."""
    try:
        convert(value, SentFailure)
    except ValidationError as error:
        message, _, where = json_words(error).partition(" - at `$")
        return Issue("failure" + where.rstrip("`"), message)
    return None


def require_failure(sent: SentFailure, *, error: str | None) -> None:
    """Raises `InvalidRequest` for an impossible one."""
    if error is None:
        raise invalid([Issue("failure", "can only be given with `error`")])
    if len(encode(sent)) > MAX_FAILURE_BYTES:
        raise invalid([Issue("failure", f"must not be larger than {MAX_FAILURE_BYTES // 1024} KB")])
    if problem := recovery_problem(sent.kind or "domain_rejection", sent.recovery):
        raise invalid([Issue("failure.recovery", problem)])


class ToolResultBody(Struct, frozen=True):
    """The answer to one client-side call: `result` or `error`, or neither if it was too large."""

    tool_use_id: str
    result: str | None = None
    error: str | None = None
    failure: SentFailure | None = None
    oversize: bool = False
    unknown: tuple[UnknownField, ...] = ()
    token: str = ""
    """The token of the client's lease on the call."""
    files: tuple[Image | File, ...] = ()
    """What the model gets with the `result`."""


class ToolResult(Struct, rename="camel"):
    """The result of a client-side call: `result` or `error`, and what is known about the failure."""

    tool_use_id: Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_USE_ID_CHARS)]
    result: str | None = None
    error: str | None = None
    failure: SentFailure | None = None
    lease_token: str | None = None
    """The token of the client's lease on the call."""
    files: list[SentFile] | None = None
    """Images and files that the model gets with the `result`."""


class _AnyToolResult(Struct, rename="camel"):
    tool_use_id: Any = None
    result: Any = None
    error: Any = None
    failure: Any = None
    lease_token: Any = None
    files: Any = None


class _ExactToolResult(ToolResult, rename="camel", forbid_unknown_fields=True):
    """Refuses unknown fields. Nearly every result has none, which this shows in one pass."""

    failure: ExactFailure | None = None  # pyright: ignore[reportIncompatibleVariableOverride]


_TOOL_RESULT = Shape(frozenset(field.encode_name for field in fields_of(ToolResult)), {"failure": FAILURE_SHAPE})
_exact_tool_result = json.Decoder(_ExactToolResult)
_tool_result = json.Decoder(ToolResult)
_any_tool_result = json.Decoder(_AnyToolResult)


def parse_tool_result(body: bytes, *, user_agent: str) -> ToolResultBody:
    """Parses the result of a client-side call.

    One that is too large is returned as `oversize`, without its text, so that its call can be closed. An unpaired
    surrogate or U+0000 becomes U+FFFD, so that the run gets the rest.
    """
    unknown: tuple[UnknownField, ...] = ()
    body = without_nul(body)
    try:
        sent = _exact_tool_result.decode(body)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        sent, unknown = _inexact_tool_result(body)
    if sent.failure is not None:
        require_failure(sent.failure, error=sent.error)
    if sent.files and sent.result is None:
        raise invalid([Issue("files", "are sent with a `result`")])
    token = sent.lease_token or ""
    match sent.result, sent.error:
        case None, None:
            if not user_agent.startswith(EMPTY_RESULT_USER_AGENT):
                raise with_typos(invalid([Issue("result", "give exactly one of `result` and `error`")]), unknown)
            return ToolResultBody(sent.tool_use_id, result="", unknown=unknown, token=token)
        case result, None:
            files = parts_of(sent.files or ())
            if fits(result) and files is not None:
                return ToolResultBody(sent.tool_use_id, result=result, unknown=unknown, token=token, files=files)
        case None, error:
            if _is_within(error, MAX_ERROR_BYTES):
                return ToolResultBody(sent.tool_use_id, error=error, failure=sent.failure, unknown=unknown, token=token)
        case _:
            raise invalid([Issue("error", "give exactly one of `result` and `error`")])
    return ToolResultBody(sent.tool_use_id, oversize=True, unknown=unknown, token=token)


def text_result(call_id: str, text: str) -> ToolResultBody:
    """Returns the result of a client-side call that comes as a text by another protocol."""
    return ToolResultBody(call_id, result=text) if fits(text) else ToolResultBody(call_id, oversize=True)


def fits(text: str) -> bool:
    """Whether a text is small enough for a result, or for a message to a run."""
    return _is_within(text, MAX_RESULT_BYTES)


def _inexact_tool_result(body: bytes) -> tuple[ToolResult, tuple[UnknownField, ...]]:
    """Parses a result with unknown fields, and returns these too. Raises `InvalidRequest` if it is not a result."""
    try:
        refuse_many(body)
        body = whole_json(body)
        sent = _tool_result.decode(body)
        fields = decode_fields(body)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        raise _tool_result_problems(body) from None
    return sent, _unknown_in_result(fields)


def _tool_result_problems(body: bytes) -> InvalidRequest:
    """Returns everything that is wrong with the fields of a result, as decoding reports only the first problem."""
    try:
        refuse_many(body)
        sent = decode_shape(_any_tool_result, body)
    except InvalidRequest as error:
        return error
    issues = [
        Issue(name, "must be a string")
        for name, value in (("result", sent.result), ("error", sent.error), ("leaseToken", sent.lease_token))
        if value is not None and not isinstance(value, str)
    ]
    if not isinstance(sent.tool_use_id, str) or not 0 < len(sent.tool_use_id) <= MAX_TOOL_USE_ID_CHARS:
        issues.insert(0, Issue("toolUseId", f"must be a string of 1 to {MAX_TOOL_USE_ID_CHARS} characters"))
    if sent.files is not None and not is_files(sent.files):
        issues.append(Issue("files", "must be a list of {data, mimeType, filename}, each a string"))
    if sent.failure is not None and (problem := failure_problem(sent.failure)) is not None:
        issues.append(problem)
    return with_typos(invalid(issues), _unknown_in_result(decode_fields(body)))


def _unknown_in_result(fields: dict[str, Raw]) -> tuple[UnknownField, ...]:
    sent: dict[str, object] = {name: True for name, value in fields.items() if value != NULL}
    if "failure" in sent:
        sent["failure"] = json.decode(fields["failure"])
    return unknown_fields(sent, _TOOL_RESULT)


def _is_within(text: str, max_bytes: int) -> bool:
    # Most texts are short enough in any encoding.
    return len(text) * 4 <= max_bytes or (len(text) <= max_bytes and len(text.encode()) <= max_bytes)
