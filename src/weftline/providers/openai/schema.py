"""JSON Schemas of tools and answers for OpenAI's APIs, and undoing what they changed about an answer."""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import UNSET, Raw

from weftline import prompts
from weftline.messages import OutputSchema
from weftline.providers.base import (
    CallArgs,
    CallDone,
    CallStart,
    Chunk,
    Finish,
    ModelRequest,
    TextDelta,
    ToolSpec,
    UsageUpdate,
)
from weftline.providers.names import free_name
from weftline.providers.openai.strict import Schema, strict_form, target, without_nulls

ANSWER_TOOL = "final_report"
WRAPPED = "output"
_TOP_UNIONS = ("anyOf", "oneOf", "allOf")
_PLAIN_TOP = (*_TOP_UNIONS, "enum", "const", "not")


class ToolSchema(NamedTuple):
    """The parameters of a tool. `strict` is the form for strict mode, if there is one.

    `meant` is the original schema, used to drop nulls that stand for omitted fields.
    """

    parameters: bytes
    strict: bytes | None = None
    meant: Schema | None = None

    def restored(self, arguments: str) -> str:
        """Returns the arguments as they would be without strict mode."""
        return arguments if self.meant is None else without_nulls(arguments, self.meant)


class AnswerSchema(NamedTuple):
    """The schema of an answer.

    If `wrapped`, the answer is the field `output` of an object, as the top must be an object.
    """

    schema: bytes
    strict: bool
    wrapped: bool = False
    meant: Schema | None = None

    @property
    def as_sent(self) -> bool:
        """True if an answer is passed on as the model wrote it."""
        return not self.wrapped and self.meant is None

    def restored(self, text: str) -> str:
        """Returns the answer as the author of the schema expects it."""
        if self.wrapped:
            text = _unwrapped(text)
        return text if self.meant is None else without_nulls(text, self.meant)


class AnswerTool(NamedTuple):
    """The tool with which the model gives its answer. If `wrapped`, the answer is the field `output` of its input."""

    spec: ToolSpec
    wrapped: bool

    @property
    def name(self) -> str:
        return self.spec.name

    def restored(self, arguments: str) -> str:
        return _unwrapped(arguments) if self.wrapped else arguments


def described(spec: ToolSpec) -> str:
    """Returns the tool's description, with what it returns, since these APIs have no field for that."""
    if spec.output_schema is UNSET:
        return spec.description
    schema = bytes(spec.output_schema).decode()
    return f"{spec.description}\n\nThe result is JSON of this schema: {schema}".lstrip()


def tool_schema(spec: ToolSpec) -> ToolSchema:
    return _schema_for_tool(bytes(spec.parameters))


def answer_schema(output: OutputSchema) -> AnswerSchema:
    return _schema_for_answer(bytes(output.schema))


def answer_tool(output: OutputSchema, taken: Container[str]) -> AnswerTool:
    """Returns the tool, under a name that no tool of the run is sent as."""
    schema, wrapped = _schema_for_answer_tool(bytes(output.schema))
    return AnswerTool(ToolSpec(free_name(ANSWER_TOOL, taken), prompts.models.ANSWER_TOOL, Raw(schema)), wrapped)


@lru_cache(maxsize=256)
def _schema_for_answer_tool(schema: bytes) -> tuple[bytes, bool]:
    given = _decoded(schema)
    if given is None or _is_object(given) or b'"#"' in schema:
        return schema, False
    return msgspec.json.encode(_wrapper(given)), True


@lru_cache(maxsize=1024)
def _schema_for_tool(parameters: bytes) -> ToolSchema:
    top = _decoded(parameters)
    if top is None:
        return ToolSchema(b'{"type":"object","properties":{}}')
    mended = cast("Schema", _mended(_mended_top(top)))
    sent = parameters if mended == top else msgspec.json.encode(mended)
    form = strict_form(mended)
    if form is None:
        return ToolSchema(sent)
    strict = sent if form.schema is mended else msgspec.json.encode(form.schema)
    return ToolSchema(sent, strict, mended if form.nulls else None)


@lru_cache(maxsize=256)
def _schema_for_answer(schema: bytes) -> AnswerSchema:
    given = _decoded(schema)
    if given is None:
        return AnswerSchema(schema, strict=False)
    wrapped = not _is_object(given) and b'"#"' not in schema
    top = _wrapper(given) if wrapped else given
    form = strict_form(top)
    sent = top if form is None else form.schema
    return AnswerSchema(
        schema if sent is given else msgspec.json.encode(sent),
        strict=form is not None,
        wrapped=wrapped,
        meant=given if form is not None and form.nulls else None,
    )


def _decoded(schema: bytes) -> Schema | None:
    try:
        return msgspec.json.decode(schema, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _is_object(schema: Schema) -> bool:
    plain = target(schema, schema) or schema
    return plain.get("type") == "object" and not plain.keys() & set(_PLAIN_TOP)


def _wrapper(schema: Schema) -> Schema:
    # References are resolved from the top, so their targets have to stay there.
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    inner = {name: value for name, value in schema.items() if name not in shared}
    closed = {"required": [WRAPPED], "additionalProperties": False}
    return {"type": "object", "properties": {WRAPPED: inner}, **closed, **shared}


def _unwrapped(text: str) -> str:
    try:
        fields = msgspec.json.decode(text, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
    return bytes(fields[WRAPPED]).decode() if fields.keys() == {WRAPPED} else text


def _mended_top(schema: dict[str, Any]) -> dict[str, Any]:
    """Makes the top a plain object: alternatives there become one object with the properties of all of them."""
    unions = [key for key in _TOP_UNIONS if isinstance(schema.get(key), list)]
    kept = {key: value for key, value in schema.items() if key not in (*unions, "enum", "not", "const")}
    if "enum" in schema or "not" in schema or "const" in schema or unions:
        properties: dict[str, Any] = dict(kept.get("properties") or {})
        required: set[str] = set(kept.get("required") or [])
        for key in unions:
            members = [cast("dict[str, Any]", one) for one in schema[key] if isinstance(one, dict)]
            for member in members:
                for name, value in cast("dict[str, Any]", member.get("properties") or {}).items():
                    properties.setdefault(name, value)
            sets = [set[str](member.get("required") or []) for member in members]
            if sets:
                required |= set[str].union(*sets) if key == "allOf" else set[str].intersection(*sets)
        kept["properties"] = properties
        if required:
            kept["required"] = sorted(required)
    if kept.get("type") != "object":
        kept = {**kept, "type": "object"}
    return kept


def _mended(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_mended(one) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, Any]", schema)
    mended = {key: value if key in _LITERAL else _mended_member(key, value) for key, value in fields.items()}
    if mended.get("type") == "object" and "properties" not in mended and "additionalProperties" not in mended:
        mended["properties"] = {}
    if mended.get("type") == "array" and "items" not in mended and "prefixItems" not in mended:
        mended["items"] = {}
    return mended


_LITERAL = frozenset({"enum", "const", "default", "examples", "required"})
_NAMED = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})


def _mended_member(key: str, value: Any) -> Any:
    if key in _NAMED and isinstance(value, dict):
        # Here the keys are names, not keywords.
        return {name: _mended(one) for name, one in cast("dict[str, Any]", value).items()}
    return _mended(value)


class Restorer:
    """Processes the chunks of one answer. Text that has to be rewritten is held back until it is complete."""

    def __init__(self, answer: AnswerSchema | None, tools: Mapping[str, ToolSchema]) -> None:
        self._answer = None if answer is None or answer.as_sent else answer
        self._tools = tools
        self._text: list[str] = []
        self._calls: dict[str | int, tuple[ToolSchema, list[str]]] = {}
        self._idle = self._answer is None and not tools

    def take(self, chunks: list[Chunk]) -> list[Chunk]:
        if self._idle:
            return chunks
        out: list[Chunk] = []
        for chunk in chunks:
            match chunk:
                case TextDelta(text) if self._answer is not None:
                    self._text.append(text)
                    continue
                case CallStart(key, name) if name in self._tools:
                    self._calls[key] = (self._tools[name], [])
                case CallArgs(key, json) if key in self._calls:
                    self._calls[key][1].append(json)
                case CallDone(key, args, extra) if key in self._calls:
                    schema, pieces = self._calls.pop(key)
                    chunk = CallDone(key, schema.restored("".join(pieces) if args is None else args), extra)
                case _:
                    pass
            if not isinstance(chunk, UsageUpdate):
                out += self._whole_text()
            out.append(chunk)
        return out

    def rest(self) -> list[Chunk]:
        """Returns what was held back of an answer that broke off, unchanged."""
        text, self._text = "".join(self._text), []
        return [TextDelta(text)] if text else []

    def _whole_text(self) -> list[Chunk]:
        text, self._text = "".join(self._text), []
        return [TextDelta(text if self._answer is None else self._answer.restored(text))] if text else []


class ReportRestorer:
    """Makes the call of the answer tool the text of the answer, and drops text that the model wrote around it.

    Other text is held back until it is clear that no such call follows.
    """

    def __init__(self, tool: AnswerTool) -> None:
        self._tool = tool
        self._text: list[str] = []
        self._reports: dict[str | int, list[str]] = {}
        """The calls of the answer tool. Only the first counts."""
        self._first: str | int | None = None
        self._called = False

    def take(self, chunks: list[Chunk]) -> list[Chunk]:
        out: list[Chunk] = []
        for chunk in chunks:
            match chunk:
                case TextDelta(text):
                    if self._first is None:
                        self._text.append(text)
                    continue
                case CallStart(key, name) if name == self._tool.name:
                    if self._first is None:
                        self._first = key
                        self._text.clear()
                    self._reports[key] = []
                    continue
                case CallArgs(key, json) if key in self._reports:
                    self._reports[key].append(json)
                    if key == self._first and not self._tool.wrapped:
                        out.append(TextDelta(json))
                    continue
                case CallDone(key, args) if key in self._reports:
                    pieces = self._reports.pop(key)
                    if key == self._first and (self._tool.wrapped or not pieces):
                        out.append(TextDelta(self._tool.restored("".join(pieces) or args or "{}")))
                    continue
                case CallStart():
                    self._called = True
                    out += self.rest()
                case Finish():
                    answered = self._first is not None or bool(self._text)
                    out += self.rest()
                    if answered and not self._called and chunk.reason in ("tool_use", "malformed_function_call"):
                        # A server may also refuse an answer that the model wrote as text; it is checked like any other.
                        chunk = Finish("end_turn")
                case _:
                    pass
            out.append(chunk)
        return out

    def rest(self) -> list[Chunk]:
        """Returns what was held back, unchanged."""
        begun = self._reports.get(self._first, []) if self._tool.wrapped and self._first is not None else []
        text = "".join([*self._text, *begun])
        self._text.clear()
        begun.clear()
        return [TextDelta(text)] if text else []


def restorer_for(request: ModelRequest, *, answer: bool, tools: bool) -> Restorer:
    """`answer` and `tools` say whether these schemas were sent in their form for strict mode."""
    output = answer_schema(request.output_schema) if answer and request.output_schema is not None else None
    schemas = {spec.name: tool_schema(spec) for spec in request.tools} if tools else {}
    return Restorer(output, {name: schema for name, schema in schemas.items() if schema.meant is not None})
