"""Reads requests with a spec: bytes in, what is to be stored or an `InvalidRequest` out.

Most bodies are valid and have no unknown field: they decode in one pass, and only the checks that their fields declare
are left. Any other body is walked field by field, so that the refusal names the first problems in its message
(`tools[2].name: …`) and lists all of them in its details, as `issues: [{path, message}]`; a test keeps the two
consistent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, cast

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from weftline.errors import InvalidRequest, Issue, TooLarge, invalid
from weftline.messages import Blob
from weftline.spec.declare import Part, exact, read_seconds
from weftline.spec.fields import INPUT_FIELDS, Chat, MessageModel, RunModel, asks_for_checklist
from weftline.spec.tools import DIALLED, ServerTool, duplicate_names, take_secrets
from weftline.spec.walk import Problems, checks_of, walk_of
from weftline.text.json_size import SMALL_BYTES
from weftline.wire.attachments import take_attachments
from weftline.wire.json_text import NULL, decode_fields, decode_object, decode_value, encode, refuse_many
from weftline.wire.limits import DEFAULT_RUN_NAME, MAX_BODY_BYTES
from weftline.wire.unknown_fields import (
    Shape,
    UnknownField,
    shape_of_struct,
    unknown_fields,
    unused_schemas,
    with_typos,
)
from weftline.wire.validation import quoted


class SentSpec(Struct, frozen=True):
    """A valid request.

    `spec` is the JSON to store: every field as it was sent, except for secrets, which are `[redacted]`, and the
    contents of attachments.
    """

    spec: bytes
    name: str = DEFAULT_RUN_NAME
    agent_id: str | None = None
    metadata: dict[str, str] = {}
    secrets: dict[str, dict[str, str]] = {}
    """Header values by tool name and header name."""
    unknown: tuple[UnknownField, ...] = ()
    """Fields that were sent but are unknown, or have no effect."""
    blobs: tuple[Blob, ...] = ()
    """The contents of attachments, to which `spec` refers."""
    run_id: str | None = None
    """The id that the client chose for a run, instead of one of the server's."""
    replaces_tools: bool = False
    """True if it has tools, which replace those of a session."""


class Door:
    """Reads the bodies of one kind of request. What it needs is made when the first one comes.

    `require` checks the fields together; `refuse` comes before everything else, for a body that means something else.
    `fixed` are fields that the session has set for this request.
    """

    def __init__(
        self,
        model: type[Part],
        *,
        require: Callable[[Mapping[str, Any]], None] | None = None,
        refuse: Callable[[Mapping[str, Any]], None] | None = None,
        fixed: frozenset[str] = frozenset(),
    ) -> None:
        self._model = model
        self._require = require
        self._refuse = refuse
        self._fixed = fixed

    def read(self, body: bytes) -> SentSpec:
        """Returns a valid request; raises `InvalidRequest` with all that is wrong with any other."""
        if len(body) >= SMALL_BYTES:  # a shorter one has too much of nothing
            refuse_many(body)
        try:
            spec = self._decode(body)
            fields = decode_fields(body)
            known = self._checked(fields, spec)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            known = fields = None
        if known is None or fields is None:
            return self.read_closely(body)
        if self._require is not None:
            self._require(known)
        return self._sent(fields, known, ())

    def check(self, sent: dict[str, Any]) -> tuple[UnknownField, ...]:
        """Returns the unknown fields of an object; raises `InvalidRequest` with all of its problems."""
        problems = Problems()
        self._walk(sent, (), problems)
        if "fallbackModelId" not in self._fixed and (problem := _fallback_problem(sent)):
            problems.add(("fallbackModelId",), problem)
        unknown = unknown_fields(sent, self.shape)
        try:
            if problems.found:
                raise invalid(problems.found)
            require_names(sent.get("tools") or ())
            if self._require is not None:
                self._require(sent)
        except InvalidRequest as error:
            raise with_typos(error, unknown) from None
        return unknown

    @cached_property
    def shape(self) -> Shape:
        return shape_of_struct(self._model)

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        return Decoder(exact(self._model), dec_hook=read_seconds).decode

    @cached_property
    def _walk(self) -> Any:
        return walk_of(self._model)

    @cached_property
    def _checks(self) -> Any:
        return checks_of(self._model)

    def _checked(self, fields: dict[str, Raw], spec: Any) -> dict[str, Any] | None:
        """Returns the values that matter beyond the checks; None if one of the checks fails."""
        known: dict[str, Any] = {}
        checks, problems = self._checks, None
        files = (spec.attachments or spec.messages) and _has_files(spec)
        for name, raw in fields.items():
            if raw == NULL:
                continue
            if name == "tools" and not [tool for tool in spec.tools if not isinstance(tool, ServerTool)]:
                known[name] = spec.tools
                if len({tool.name for tool in spec.tools}) < len(spec.tools):
                    return None
            elif name in checks:
                problems = problems or Problems()
                value = known[name] = decode_value(raw)
                checks[name](value, (name,), problems)
            elif name in _READ or (files and name == "messages"):
                known[name] = decode_value(raw)
            else:
                known[name] = _THERE
        if (problems and problems.found) or ("fallbackModelId" in known and _fallback_problem(known)):
            return None
        described = _described(known)
        return None if described and duplicate_names(described) else known

    def read_closely(self, body: bytes) -> SentSpec:
        """Like `read`, field by field, for a body that is not valid or has unknown fields."""
        sent = decode_object(body)
        if self._refuse is not None:
            self._refuse(sent)
        unknown = self.check(sent)
        try:
            return self._sent(decode_fields(body), sent, unknown)
        except InvalidRequest as error:
            raise with_typos(error, unknown) from None

    def _sent(self, fields: dict[str, Raw], known: dict[str, Any], unknown: tuple[UnknownField, ...]) -> SentSpec:
        if "fallbackModelId" in fields:
            use_one_fallback(fields)
        blobs: tuple[Blob, ...] = ()
        if known.get("attachments") or type(known.get("messages")) is list:
            blobs = take_attachments(fields, known)
        secrets: dict[str, dict[str, str]] = {}
        tools = _described(known) if "tools" in known else []
        if tools and any(tool["kind"] in DIALLED for tool in tools):
            fields["tools"], secrets = take_secrets(fields["tools"], tools)
        spec = encode(fields)
        if len(spec) > MAX_BODY_BYTES:
            raise TooLarge(
                f"The body is larger than {MAX_BODY_BYTES} bytes without its attachments.", limit_bytes=MAX_BODY_BYTES
            )
        if fixed := self._fixed:
            unknown = tuple([_of_session(field) if field.path in fixed else field for field in unknown])
            known = {name: value for name, value in known.items() if name not in fixed}
        return SentSpec(
            spec,
            known.get("name") or DEFAULT_RUN_NAME,
            known.get("agentId"),
            known.get("metadata") or {},
            secrets,
            (*unknown, *_without_effect(known)) if tools or "plan" in known else unknown,
            blobs,
            known.get("runId"),
            bool(known.get("tools")),
        )


def _described(sent: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the tools of a request, unless they are nothing but names."""
    tools: Any = sent.get("tools")
    return cast("list[dict[str, Any]]", tools) if isinstance(tools, list) else []


def _has_files(spec: Any) -> bool:
    messages: tuple[Chat, ...] = spec.messages or ()
    return bool(spec.attachments) or any(message.attachments for message in messages)


_THERE: Any = object()
"""In place of a value that nobody asks for."""
_READ = frozenset({"name", "agentId", "modelFallbacks", "attachments"})


def require_input(sent: Mapping[str, Any]) -> None:
    prompt, messages = sent.get("prompt"), sent.get("messages")
    if prompt is None and messages is None:
        raise invalid([Issue("prompt", "give exactly one of `prompt` and `messages`")])
    if prompt is not None and messages is not None:
        raise invalid([Issue("messages", "give exactly one of `prompt` and `messages`")])
    if messages is not None and sent.get("attachments"):
        raise invalid([Issue("attachments", "belong in a message if `messages` is given")])


def _require_no_input(sent: Mapping[str, Any]) -> None:
    given = [name for name in INPUT_FIELDS if sent.get(name) is not None]
    if given:
        raise invalid([Issue(name, "a session is created without input; send it as a message") for name in given])


def _refuse_session(sent: Mapping[str, Any]) -> None:
    if sent.get("sessionId") is not None:
        raise InvalidRequest(
            "sessionId: a run cannot join a session this way; send it as a message to the session.",
            code="thread_not_allowed",
        )


def require_names(tools: Any) -> None:
    clashes = duplicate_names(tools) if tools else ()
    if clashes:
        raise invalid([Issue(path, _taken(name, earlier)) for path, name, earlier in clashes])


def _taken(name: str, earlier: str) -> str:
    if name == earlier:
        return f"the name {quoted(name)} is taken by an earlier tool"
    return f"{quoted(name)} and {quoted(earlier)} would have the same name for some models; rename one of them"


def _fallback_problem(sent: Mapping[str, Any]) -> str:
    listed: Any = sent.get("modelFallbacks")
    twice = sent.get("fallbackModelId") is not None and type(listed) is list and listed != []
    return "is a list of one in `modelFallbacks`; give one of the two" if twice else ""


def use_one_fallback(fields: dict[str, Any]) -> None:
    """Stores newer clients' `fallbackModelId` as the list that it means."""
    name = fields.pop("fallbackModelId", None)
    if name is not None and name != NULL:
        fields["modelFallbacks"] = [name]


def _of_session(field: UnknownField) -> UnknownField:
    return UnknownField(field.path, problem="is set when the session is created")


def _without_effect(sent: Mapping[str, Any]) -> Iterator[UnknownField]:
    """Known fields of a valid request that change nothing."""
    if asks_for_checklist(sent.get("plan")):
        yield UnknownField("plan", problem="asks for a checklist of the steps, which is not supported,")
    yield from unused_schemas(_described(sent))


_FIXED = frozenset(RunModel.__struct_encode_fields__) - frozenset(MessageModel.__struct_encode_fields__)
"""Fields that a session sets for all its runs."""

RUN = Door(RunModel, require=require_input, refuse=_refuse_session)
MESSAGE = Door(MessageModel, require=require_input, fixed=_FIXED)
_SESSION = Door(RunModel, require=_require_no_input)


def parse_run(body: bytes) -> SentSpec:
    """Parses the body of a run to create."""
    return RUN.read(body)


def parse_session(body: bytes) -> SentSpec:
    """Parses the body of a session to create: a run's, without `prompt` and `messages`."""
    return _SESSION.read(body)


def parse_message(body: bytes) -> SentSpec:
    """Parses the body of a message to a session."""
    return MESSAGE.read(body)
