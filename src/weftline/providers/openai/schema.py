"""JSON Schemas of tools as OpenAI's APIs take them.

A schema that the API takes is sent as it was written, byte for byte. One that it would refuse (no object at the top, an
object without properties, an array without items) is mended; whether it may be declared `strict` is found out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import UNSET

from weftline.providers.base import ToolSpec

_STRICT_KEYWORDS = frozenset(
    {
        "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref", "$defs",
        "definitions", "description", "title", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        "multipleOf", "minItems", "maxItems",
    }
)  # fmt: skip
_STRICT_DEPTH = 5
_STRICT_PROPERTIES = 100
_TOP_UNIONS = ("anyOf", "oneOf", "allOf")


class ToolSchema(NamedTuple):
    parameters: bytes
    strict: bool


def described(spec: ToolSpec) -> str:
    """The tool's description; what it returns is part of it, since these APIs have no field for that."""
    if spec.output_schema is UNSET:
        return spec.description
    schema = bytes(spec.output_schema).decode()
    return f"{spec.description}\n\nThe result is JSON of this schema: {schema}".lstrip()


def tool_schema(spec: ToolSpec) -> ToolSchema:
    return _tool_schema(bytes(spec.parameters))


@lru_cache(maxsize=1024)
def _tool_schema(parameters: bytes) -> ToolSchema:
    try:
        schema: Any = msgspec.json.decode(parameters)
    except (msgspec.DecodeError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        return ToolSchema(b'{"type":"object","properties":{}}', strict=False)
    top = cast("dict[str, Any]", schema)
    mended = _mended_top(top)
    mended = _mended(mended)
    strict = _Strictness().holds(mended)
    return ToolSchema(parameters if mended == top else msgspec.json.encode(mended), strict=strict)


def _mended_top(schema: dict[str, Any]) -> dict[str, Any]:
    """The top must be a plain object: alternatives there become one object with the properties of all of them."""
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
        # The keys are names here, not keywords.
        return {name: _mended(one) for name, one in cast("dict[str, Any]", value).items()}
    return _mended(value)


class _Strictness:
    """Whether a schema keeps the rules of strict mode: every object closed, every property required, known keywords."""

    def __init__(self) -> None:
        self._properties = 0

    def holds(self, schema: Any, depth: int = 0) -> bool:
        if not isinstance(schema, dict) or depth > _STRICT_DEPTH:
            return False
        fields = cast("dict[str, Any]", schema)
        if not fields.keys() <= _STRICT_KEYWORDS or not fields.keys() & {"type", "anyOf", "$ref", "enum", "const"}:
            return False
        properties = cast("dict[str, Any]", fields.get("properties") or {})
        kind = fields.get("type")
        if kind == "object" or (isinstance(kind, list) and "object" in kind) or properties:
            if fields.get("additionalProperties") is not False:
                return False
            if set(cast("list[str]", fields.get("required") or [])) != properties.keys():
                return False
        self._properties += len(properties)
        if self._properties > _STRICT_PROPERTIES:
            return False
        members: list[Any] = [*properties.values(), *cast("list[Any]", fields.get("anyOf") or [])]
        for definitions in ("$defs", "definitions"):
            members += cast("dict[str, Any]", fields.get(definitions) or {}).values()
        if "items" in fields:
            members.append(fields["items"])
        return all(self.holds(member, depth + 1) for member in members)
