"""The request bodies of the protocol: bytes in, a checked body or an `InvalidRequest` out.

An `InvalidRequest` names the field in its message (`tools[2].name: …`) and lists every problem in its details, as
`issues: [{path, message}]`.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from msgspec import DecodeError, Meta, Raw, Struct, json
from msgspec.structs import fields as fields_of
from msgspec.structs import replace
from pydantic import ValidationError

from weftline.errors import InvalidRequest, Issue, invalid
from weftline.messages import Blob
from weftline.surrogates import whole_json
from weftline.wire.attachments import take_attachments
from weftline.wire.bodies import MessageBody, RunBody, SessionBody, SpecBody, ToolResultBody
from weftline.wire.engine_options import ENGINE_OPTIONS
from weftline.wire.failures import FAILURE_SHAPE, ExactFailure, SentFailure, failure_fault, require_failure
from weftline.wire.json_text import decode_fields, decode_object, decode_shape, encode, refuse_many
from weftline.wire.limits import (
    DEFAULT_RUN_NAME,
    EMPTY_RESULT_USER_AGENT,
    MAX_ERROR_BYTES,
    MAX_RESULT_BYTES,
    MAX_TOOL_USE_ID_CHARS,
)
from weftline.wire.plain import plain_run
from weftline.wire.plan import NULL
from weftline.wire.run_spec import MessageModel, RunModel
from weftline.wire.tool_refs import ADDRESS_FIELDS, KINDS, duplicate_names, quoted, take_secrets
from weftline.wire.unknown_fields import Shape, UnknownField, shape_of, unknown_fields, with_typos
from weftline.wire.unused_schemas import unused_schemas
from weftline.wire.validation import path_of, words_of

_Body = TypeVar("_Body", bound=SpecBody)

_check_run = RunModel.__pydantic_validator__.validate_python
_check_message = MessageModel.__pydantic_validator__.validate_python
_RUN, _MESSAGE = shape_of(RunModel), shape_of(MessageModel)
_FIXED = _RUN.known - _MESSAGE.known
"""What a session sets for all its runs."""


def parse_run(body: bytes) -> RunBody:
    """Parses the body of a run to create."""
    return plain_run(body) or any_run(body)


def any_run(body: bytes) -> RunBody:
    """Like `parse_run`, without the shortcut for plain bodies."""
    fields = decode_object(body)
    if fields.get("sessionId") is not None:
        raise InvalidRequest(
            "sessionId: a run cannot join a session this way; send it as a message to the session.",
            code="thread_not_allowed",
        )
    try:
        _require_valid(fields, _check_run)
        _require_input(fields)
        return replace(_spec_body(RunBody, body, fields), run_id=fields.get("runId"))
    except InvalidRequest as error:
        raise with_typos(error, unknown_fields(fields, _RUN)) from None


def parse_session(body: bytes) -> SessionBody:
    """Parses the body of a session to create: a run's, without `prompt` and `messages`."""
    fields = decode_object(body)
    try:
        _require_valid(fields, _check_run)
        _require_no_input(fields)
        return _spec_body(SessionBody, body, fields)
    except InvalidRequest as error:
        raise with_typos(error, unknown_fields(fields, _RUN)) from None


def _require_no_input(fields: dict[str, Any]) -> None:
    given = [
        key
        for key in ("prompt", "messages", "attachments", "turnId", "runId", *ENGINE_OPTIONS)
        if fields.get(key) is not None
    ]
    if given:
        raise invalid([Issue(key, "a session is created without input; send it as a message") for key in given])


def parse_message(body: bytes) -> MessageBody:
    """Parses the body of a message to a session."""
    fields = decode_object(body)
    try:
        _require_valid(fields, _check_message)
        _require_input(fields)
        spec, secrets, blobs = _stored(body, fields)
    except InvalidRequest as error:
        raise with_typos(error, unknown_fields(fields, _MESSAGE)) from None
    ignored = [_of_session(field) for field in unknown_fields(fields, _MESSAGE)]
    unknown = (*ignored, *unused_schemas(fields.get("tools")))
    return MessageBody(
        spec, fields.get("metadata") or {}, secrets, bool(fields.get("tools")), unknown, blobs, fields.get("runId")
    )


def _of_session(field: UnknownField) -> UnknownField:
    if field.path not in _FIXED:
        return field
    return UnknownField(field.path, fault="is set when the session is created")


class ToolResult(Struct, rename="camel"):
    """The result of a client-side call: `result` or `error`, and what is known about the failure."""

    tool_use_id: Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_USE_ID_CHARS)]
    result: str | None = None
    error: str | None = None
    failure: SentFailure | None = None
    lease_token: str | None = None
    """The token of the client's lease on the call."""


class _AnyToolResult(Struct, rename="camel"):
    tool_use_id: Any = None
    result: Any = None
    error: Any = None
    failure: Any = None
    lease_token: Any = None


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
    surrogate becomes U+FFFD, so that the run gets the rest.
    """
    unknown: tuple[UnknownField, ...] = ()
    try:
        sent = _exact_tool_result.decode(body)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        sent, unknown = _inexact_tool_result(body)
    if sent.failure is not None:
        require_failure(sent.failure, error=sent.error)
    token = sent.lease_token or ""
    match sent.result, sent.error:
        case None, None:
            if not user_agent.startswith(EMPTY_RESULT_USER_AGENT):
                raise with_typos(invalid([Issue("result", "give exactly one of `result` and `error`")]), unknown)
            return ToolResultBody(sent.tool_use_id, result="", unknown=unknown, token=token)
        case result, None:
            if _fits(result, MAX_RESULT_BYTES):
                return ToolResultBody(sent.tool_use_id, result=result, unknown=unknown, token=token)
        case None, error:
            if _fits(error, MAX_ERROR_BYTES):
                return ToolResultBody(sent.tool_use_id, error=error, failure=sent.failure, unknown=unknown, token=token)
        case _:
            raise invalid([Issue("error", "give exactly one of `result` and `error`")])
    return ToolResultBody(sent.tool_use_id, oversize=True, unknown=unknown, token=token)


def _inexact_tool_result(body: bytes) -> tuple[ToolResult, tuple[UnknownField, ...]]:
    """Parses a result with unknown fields, and returns these too. Raises `InvalidRequest` if it is not a result."""
    try:
        refuse_many(body)
        body = whole_json(body)
        sent = _tool_result.decode(body)
        fields = decode_fields(body)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        raise _tool_result_faults(body) from None
    return sent, _unknown_in_result(fields)


def _tool_result_faults(body: bytes) -> InvalidRequest:
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
    if sent.failure is not None and (fault := failure_fault(sent.failure)) is not None:
        issues.append(fault)
    return with_typos(invalid(issues), _unknown_in_result(decode_fields(body)))


def _unknown_in_result(fields: dict[str, Raw]) -> tuple[UnknownField, ...]:
    sent: dict[str, object] = {name: True for name, value in fields.items() if value != NULL}
    if "failure" in sent:
        sent["failure"] = json.decode(fields["failure"])
    return unknown_fields(sent, _TOOL_RESULT)


def _fits(text: str, max_bytes: int) -> bool:
    # Most texts are short enough in any encoding.
    return len(text) * 4 <= max_bytes or (len(text) <= max_bytes and len(text.encode()) <= max_bytes)


def _require_valid(fields: dict[str, Any], check: Any) -> None:
    try:
        check(fields)
    except ValidationError as error:
        raise invalid(_issues(error)) from None
    tools: list[dict[str, Any]] | None = fields.get("tools")
    if tools:
        clashes = duplicate_names(tools)
        if clashes:
            raise invalid([Issue(path, _taken(name, earlier)) for path, name, earlier in clashes])


def _taken(name: str, earlier: str) -> str:
    if name == earlier:
        return f"the name {quoted(name)} is taken by an earlier tool"
    return f"{quoted(name)} and {quoted(earlier)} would have the same name for some models; rename one of them"


def _require_input(fields: dict[str, Any]) -> None:
    prompt, messages = fields.get("prompt"), fields.get("messages")
    if prompt is None and messages is None:
        raise invalid([Issue("prompt", "give exactly one of `prompt` and `messages`")])
    if prompt is not None and messages is not None:
        raise invalid([Issue("messages", "give exactly one of `prompt` and `messages`")])
    if messages is not None and fields.get("attachments"):
        raise invalid([Issue("attachments", "belong in a message if `messages` is given")])


def _stored(body: bytes, fields: dict[str, Any]) -> tuple[bytes, dict[str, dict[str, str]], tuple[Blob, ...]]:
    """Returns the bytes to store, and what is stored separately: secrets and the contents of attachments.

    A duplicate key is stored once, so that it cannot hide a secret.
    """
    raw: dict[str, Raw] = decode_fields(body)
    blobs = take_attachments(raw, fields) if "attachments" in fields or "messages" in fields else ()
    secrets: dict[str, dict[str, str]] = {}
    tools = fields.get("tools")
    if tools and any(tool["kind"] in ADDRESS_FIELDS for tool in tools):
        raw["tools"], secrets = take_secrets(raw["tools"], tools)
    return encode(raw), secrets, blobs


def _spec_body(kind: type[_Body], body: bytes, fields: dict[str, Any]) -> _Body:
    spec, secrets, blobs = _stored(body, fields)
    return kind(
        spec,
        fields.get("name") or DEFAULT_RUN_NAME,
        fields.get("agentId"),
        fields.get("modelId"),
        fields.get("metadata") or {},
        secrets,
        (*unknown_fields(fields, _RUN), *unused_schemas(fields.get("tools"))),
        blobs,
    )


def _issues(error: ValidationError) -> list[Issue]:
    found: list[Issue] = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        loc = problem["loc"]
        # A tool's path includes the tag of the union, which the client did not send.
        if len(loc) > 2 and loc[0] == "tools" and loc[2] in KINDS:
            loc = (*loc[:2], *loc[3:])
        if loc and loc[-1] == "[key]":
            loc = loc[:-1]
        message = words_of(problem)
        if problem["type"] == "union_tag_invalid":
            loc, message = (*loc, "kind"), f"must be one of {', '.join(KINDS)}"
        elif problem["type"] == "union_tag_not_found":
            loc, message = (*loc, "kind"), "Field required"
        found.append(Issue(path_of(loc), message))
    return found
