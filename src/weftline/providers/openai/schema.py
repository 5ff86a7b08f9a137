"""JSON Schemas of tools and answers for OpenAI's APIs.

A schema that the API accepts is sent byte for byte. One that it would refuse (no object at the top, an object without
properties, an array without items) is repaired. Strict mode is used if the schema fits, or can be adapted without
changing its meaning; see `weftline.providers.openai.strict`.
"""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import UNSET, Raw

from weftline import prompts
from weftline.messages import OutputSchema
from weftline.providers.base import ToolSpec
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
