"""Requests with a run's spec: what `wire.requests` has checked by the models of `wire.run_spec`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from msgspec import Raw
from msgspec.structs import replace
from pydantic import ValidationError

from weftline.errors import InvalidRequest, Issue, TooLarge, invalid
from weftline.messages import Blob
from weftline.wire.attachments import take_attachments
from weftline.wire.bodies import MessageBody, RunBody, SessionBody, SpecBody
from weftline.wire.engine_options import ENGINE_OPTIONS
from weftline.wire.json_text import decode_fields, decode_object, encode
from weftline.wire.limits import DEFAULT_RUN_NAME, MAX_BODY_BYTES
from weftline.wire.plan import NULL
from weftline.wire.run_spec import MessageModel, RunModel, asks_for_checklist
from weftline.wire.tool_refs import ADDRESS_FIELDS, KINDS, duplicate_names, take_secrets
from weftline.wire.unknown_fields import UnknownField, shape_of, unknown_fields, with_typos
from weftline.wire.unused_schemas import unused_schemas
from weftline.wire.validation import path_of, quoted, words_of

_Body = TypeVar("_Body", bound=SpecBody)

_check_run = RunModel.__pydantic_validator__.validate_python
_check_message = MessageModel.__pydantic_validator__.validate_python
_RUN, _MESSAGE = shape_of(RunModel), shape_of(MessageModel)
_FIXED = _RUN.known - _MESSAGE.known
"""What a session sets for all its runs."""


def any_run(body: bytes) -> RunBody:
    """The body of a run to create, plain or not."""
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


def any_session(body: bytes) -> SessionBody:
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


def any_message(body: bytes) -> MessageBody:
    """Parses the body of a message to a session."""
    fields = decode_object(body)
    try:
        _require_valid(fields, _check_message)
        _require_input(fields)
        spec, secrets, blobs = _stored(body, fields)
    except InvalidRequest as error:
        raise with_typos(error, unknown_fields(fields, _MESSAGE)) from None
    ignored = [_of_session(field) for field in unknown_fields(fields, _MESSAGE)]
    unknown = (*ignored, *_without_effect(fields))
    return MessageBody(
        spec, fields.get("metadata") or {}, secrets, bool(fields.get("tools")), unknown, blobs, fields.get("runId")
    )


def _of_session(field: UnknownField) -> UnknownField:
    if field.path not in _FIXED:
        return field
    return UnknownField(field.path, problem="is set when the session is created")


def _without_effect(fields: dict[str, Any]) -> Iterator[UnknownField]:
    """Known fields of a valid request that change nothing."""
    if asks_for_checklist(fields.get("plan")):
        yield UnknownField("plan", problem="asks for a checklist of the steps, which is not supported,")
    yield from unused_schemas(fields.get("tools"))


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
    """The bytes to store, and what is stored apart from them: secrets and the contents of attachments.

    A key that was sent twice is stored once, so that no secret hides behind the second.
    """
    raw: dict[str, Raw] = decode_fields(body)
    use_one_fallback(raw)
    blobs = take_attachments(raw, fields) if "attachments" in fields or "messages" in fields else ()
    secrets: dict[str, dict[str, str]] = {}
    tools = fields.get("tools")
    if tools and any(tool["kind"] in ADDRESS_FIELDS for tool in tools):
        raw["tools"], secrets = take_secrets(raw["tools"], tools)
    spec = encode(raw)
    if len(spec) > MAX_BODY_BYTES:
        raise TooLarge(
            f"The body is larger than {MAX_BODY_BYTES} bytes without its attachments.", limit_bytes=MAX_BODY_BYTES
        )
    return spec, secrets, blobs


def use_one_fallback(fields: dict[str, Any]) -> None:
    """Stores newer clients' `fallbackModelId` as the list that it means."""
    name = fields.pop("fallbackModelId", None)
    if name is not None and name != NULL:
        fields["modelFallbacks"] = [name]


def _spec_body(kind: type[_Body], body: bytes, fields: dict[str, Any]) -> _Body:
    spec, secrets, blobs = _stored(body, fields)
    return kind(
        spec,
        fields.get("name") or DEFAULT_RUN_NAME,
        fields.get("agentId"),
        fields.get("modelId"),
        fields.get("metadata") or {},
        secrets,
        (*unknown_fields(fields, _RUN), *_without_effect(fields)),
        blobs,
    )


def _issues(error: ValidationError) -> list[Issue]:
    found: list[Issue] = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        loc = problem["loc"]
        # A tool's path includes the tag of the union, which the client never wrote.
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
