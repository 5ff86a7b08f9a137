"""Requests of MCP servers during a call: forms for a person to fill in, or text from a model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from weftline import prompts
from weftline.kernel.bodies import Peer
from weftline.kernel.entries import Effect
from weftline.messages import joined_text
from weftline.providers.base import ToolSpec
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.text.json_size import is_modest
from weftline.text.redaction import Redactor
from weftline.text.schema_cost import refusal
from weftline.tools.arguments import object_args
from weftline.tools.asking import Ask
from weftline.tools.base import (
    ClientKind,
    FurtherCalls,
    Reconciled,
    ToolContext,
    ToolFailed,
    ToolOutput,
    Traits,
    Unknown,
)
from weftline.tools.checking import issues_of
from weftline.work.outcomes import attempt

if TYPE_CHECKING:
    from mcp.types import CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ErrorData

logger = logging.getLogger(__name__)


MAX_MESSAGE_CHARS = 4000
MAX_FIELDS = 20
_MAX_FIELD_CHARS = 500
_TRIES = 3
"""How often a person is asked if the answers do not fit."""
_YES, _NO = "yes", "no"


class Form(Struct, frozen=True, omit_defaults=True):
    """A form of a server. Without fields it is a yes or no; with a `url`, a person has to go there."""

    message: str
    schema: dict[str, Any] = {}
    url: str = ""
    fault: str = ""
    """What was wrong with the last answer."""

    @classmethod
    def of(cls, params: ElicitRequestParams) -> Form:
        schema = getattr(params, "requested_schema", None)
        return cls(params.message, dict(schema or {}), str(getattr(params, "url", None) or ""))

    @property
    def fields(self) -> dict[str, Mapping[str, Any]]:
        found: object = self.schema.get("properties")
        each = cast("dict[str, object]", found) if isinstance(found, dict) else {}
        return {name: cast("Mapping[str, Any]", one) for name, one in each.items() if isinstance(one, Mapping)}

    @property
    def fault_of_form(self) -> str:
        """Why this form cannot be used; empty if it can."""
        if len(self.fields) > MAX_FIELDS:
            return "it has too many fields"
        return refusal(self.schema, encoded=msgspec.json.encode(self.schema)) or ""

    @property
    def options(self) -> tuple[str, ...]:
        """The options, if it is a single choice."""
        if not self.fields:
            return (_YES, _NO)
        if len(self.fields) > 1:
            return ()
        return _choices(next(iter(self.fields.values())))

    def prompt(self, server: str) -> str:
        lines = [f"{server} asks: {self.message}"]
        if self.url:
            lines.append(f"It wants you to open {self.url}")
        if self.fields and not (len(self.fields) == 1 and self.options):
            required: object = self.schema.get("required")
            needed = cast("list[object]", required) if isinstance(required, list) else []
            lines += [_line(name, one, optional=name not in needed) for name, one in self.fields.items()]
        if self.fault:
            lines.append(f"The last answer did not fit: {self.fault}")
        return "\n".join(lines)

    def values(self, answer: str) -> dict[str, Any]:
        """Parses an answer: an object, one value, or a line `name: value` for each field.

        Fields that it leaves out have their defaults.
        """
        return with_defaults(self.schema, self._given(answer))

    def _given(self, answer: str) -> dict[str, Any]:
        fields = self.fields
        if not fields:
            return {}
        try:
            whole: object = msgspec.json.decode(answer) if is_modest(answer) else None
        except (msgspec.DecodeError, RecursionError):
            whole = None
        if isinstance(whole, dict):
            return cast("dict[str, Any]", whole)
        if len(fields) == 1:
            name, one = next(iter(fields.items()))
            return {} if "default" in one and not answer.strip() else {name: _parsed(one, answer)}
        lines = [line.partition(":") for line in answer.splitlines() if ":" in line]
        given = {name.strip(): value.strip() for name, _, value in lines}
        return {
            name: _parsed(fields[name], value)
            for name, value in given.items()
            if name in fields and (value or "default" not in fields[name])
        }


def with_defaults(schema: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values, with the schema's defaults for those that are missing or None."""
    fields = Form("", dict(schema)).fields
    defaults = {name: one["default"] for name, one in fields.items() if "default" in one}
    return defaults | {name: value for name, value in values.items() if value is not None or name not in defaults}


class ServerQuestion:
    """The tool that puts the questions of one server to people. It is never executed."""

    effect: Effect = "read"
    concurrent = True
    timeout_s: float | None = None
    client: ClientKind | None = None
    peer: Peer | None = None
    traits = Traits(hidden=True, bookkeeping=True)

    def __init__(self, server: str, *, taken: Collection[str] = ()) -> None:
        name = f"{server}__question"
        while name in taken:
            name += "_"
        self._server = server
        self.spec = ToolSpec(name, f"What {server} asks people.", Raw(b'{"type":"object"}'))

    async def prepare(self, args: str) -> bytes:
        _, written = object_args(args)
        _decode(written)
        return written

    def asks_people(self, args: bytes) -> Ask:
        form = _decode(args)
        return Ask(form.prompt(self._server), "question", form.options)

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        raise AssertionError("it is never executed")

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        return Unknown()


_decode = msgspec.json.Decoder(Form).decode


async def put_to_people(form: Form, *, further: FurtherCalls, tool: str, redactor: Redactor) -> dict[str, Any] | None:
    """Returns the values that a person gave; None if they declined, or there was nobody to ask."""
    if form.fault_of_form:
        return None
    message = redactor.text(form.message[:MAX_MESSAGE_CHARS])
    schema = msgspec.json.decode(redactor.data(msgspec.json.encode(form.schema)), type=dict[str, Any])
    form = replace(form, message=message, schema=schema, url=redactor.text(form.url))
    for _ in range(_TRIES):
        answer = await ask_further(further, tool, msgspec.to_builtins(form))
        text = "" if answer is None else joined_text(answer.parts)
        if answer is None or answer.is_error or (not form.fields and text != _YES):
            return None
        values = form.values(text)
        issues = await issues_of(msgspec.json.encode(values), msgspec.json.encode(schema)) if form.fields else ()
        if not issues:
            return values
        fault = "; ".join([f"{one.path.strip('/') or 'the answer'} {one.message}" for one in issues[:5]])
        form = replace(form, fault=fault)
    return None


async def ask_further(further: FurtherCalls, tool: str, args: Mapping[str, Any]) -> ToolOutput | None:
    """Returns the result of a further call; None if it cannot be made, or the call that makes it was interrupted."""
    try:
        return await further.ask(tool, canonical_value(args).decode())
    except (NotCanonical, ToolFailed):
        return None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return None


def _choices(field: Mapping[str, Any]) -> tuple[str, ...]:
    if field.get("type") == "boolean":
        return (_YES, _NO)
    found: object = field.get("enum")
    if isinstance(found, list):
        return tuple([str(one) for one in cast("list[object]", found)])
    named: object = field.get("oneOf")
    if isinstance(named, list):
        each = [cast("Mapping[str, Any]", one) for one in cast("list[object]", named) if isinstance(one, Mapping)]
        return tuple([str(one["const"]) for one in each if "const" in one])
    return ()


def _line(name: str, field: Mapping[str, Any], *, optional: bool) -> str:
    kind = " or ".join(_choices(field)) or str(field.get("type", "text")).replace("string", "text")
    about = str(field.get("description") or field.get("title") or "")[:_MAX_FIELD_CHARS]
    default = msgspec.json.encode(field["default"]).decode()[:_MAX_FIELD_CHARS] if "default" in field else ""
    notes = [kind, *(["optional"] if optional else []), *([f"{default} by default"] if default else [])]
    return f"- {name} ({', '.join(notes)}){f': {about}' if about else ''}"


def _parsed(field: Mapping[str, Any], text: str) -> object:
    """Converts a value that a person wrote to the field's type.

    An invalid one stays as it is, and is reported later.
    """
    text = text.strip()
    match field.get("type"):
        case "boolean":
            return {_YES: True, "true": True, _NO: False, "false": False}.get(text.casefold(), text)
        case "integer" | "number":
            try:
                value: object = msgspec.json.decode(text) if is_modest(text) else text
            except (msgspec.DecodeError, RecursionError):
                return text
            return value if isinstance(value, int | float) else text
        case "array":
            return [one.strip() for one in text.replace("\n", ",").split(",") if one.strip()]
        case _:
            return text


MAX_SAMPLED_CHARS = 200_000


class Question(Struct, frozen=True):
    """A form that a server wants a person to fill in; `schema` is a JSON Schema of flat values."""

    message: str
    schema: dict[str, Any]


class SampleMessage(Struct, frozen=True):
    role: Literal["user", "assistant"]
    text: str


class SampleRequest(Struct, frozen=True):
    """A text that a server wants a model to continue."""

    messages: tuple[SampleMessage, ...]
    system: str | None
    max_tokens: int
    temperature: float | None = None


OnElicit: TypeAlias = Callable[[Question], Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None]
"""Answers a question with its values; None declines."""
OnSample: TypeAlias = Callable[[SampleRequest], str | Awaitable[str]]


class Caller(Struct, frozen=True):
    """A call in progress, as needed for the questions of its server."""

    run: str
    """Identifies the run among all that use the server: workspace and id, as another workspace may have the same id."""
    decline: Callable[[str], object]
    """Called with a question that is declined; with an empty one if it may belong to another run."""
    ask: Callable[[Form], Awaitable[dict[str, Any] | None]] | None = None
    """Asks the people of its run; None declines."""
    sample: OnSample | None = None
    """Asks the model of its run."""


CALLER: ContextVar[Caller | None] = ContextVar("CALLER", default=None)


def caller_of(callers: Sequence[Caller], cut_off: Collection[str] = ()) -> Caller | None:
    """Returns the call during which a server asks; None if that is unclear.

    `cut_off` has the runs of interrupted calls.
    """
    own = CALLER.get()
    if own is not None and own in callers:
        return own
    return callers[0] if callers and len({*cut_off, *(one.run for one in callers)}) == 1 else None


class Responders(Struct, frozen=True):
    """Answers the requests of servers. Without a responder, questions are declined, and no model is offered."""

    on_elicit: OnElicit | Literal["ask"] | None = None
    on_sample: OnSample | Literal["model"] | None = None

    async def values(self, params: ElicitRequestParams, caller: Caller | None) -> dict[str, Any] | None:
        """Returns the answer to a question; None if it is declined."""
        if self.on_elicit == "ask":
            ask = None if caller is None else caller.ask
            return None if ask is None else await ask(Form.of(params))
        schema = getattr(params, "requested_schema", None)
        if self.on_elicit is None or schema is None:
            return None
        answer: Mapping[str, Any] | None = None
        with attempt(logger, "on_elicit failed; the question is declined"):
            given = self.on_elicit(Question(params.message, dict(schema)))
            answer = await given if isawaitable(given) else given
        return None if answer is None else with_defaults(schema, answer)

    async def text(self, params: CreateMessageRequestParams, caller: Caller | None) -> CreateMessageResult | ErrorData:
        """Returns a model's answer to a request."""
        from mcp.types import INTERNAL_ERROR, CreateMessageResult, ErrorData, TextContent

        on_sample = (None if caller is None else caller.sample) if self.on_sample == "model" else self.on_sample
        if on_sample is None:
            return ErrorData(code=INTERNAL_ERROR, message="There is no model for this request.")
        messages = tuple([SampleMessage(one.role, _text(one.content)) for one in params.messages])
        request = SampleRequest(messages, params.system_prompt, params.max_tokens, params.temperature)
        with attempt(logger, "on_sample failed"):
            given = on_sample(request)
            text = await given if isawaitable(given) else given
            return CreateMessageResult(
                role="assistant", content=TextContent(type="text", text=text), model="given", stop_reason="endTurn"
            )
        return ErrorData(code=INTERNAL_ERROR, message="The model could not be asked.")


async def ask_model(request: SampleRequest, *, further: FurtherCalls, tool: str, redactor: Redactor) -> str:
    """Returns the answer of the run's own model. Raises `ToolFailed` if it cannot be called."""
    messages = prompts.remote.sampled_messages([(one.role, one.text) for one in request.messages])
    system = prompts.remote.sampled_system(request.system or "", request.max_tokens)
    args = {"task": redactor.text(messages[:MAX_SAMPLED_CHARS]), "system": redactor.text(system[:MAX_SAMPLED_CHARS])}
    answer = await ask_further(further, tool, args)
    if answer is None or answer.is_error:
        raise ToolFailed("" if answer is None else joined_text(answer.parts))
    return joined_text(answer.parts)


def _text(content: Any) -> str:
    blocks = cast("list[Any]", content) if isinstance(content, list) else [content]
    return "\n".join([block.text for block in blocks if block.type == "text"])
