"""Schemas for the Anthropic Messages API: the input of a tool, and the report tool for an output schema.

The API requires an object at the top of `input_schema`, without a union. Such a schema is sent verbatim; any other is
repaired to the nearest object, and the arguments are checked against the original when the tool is called.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import Raw, Struct

from weftline import prompts
from weftline.messages import OutputSchema
from weftline.providers.anthropic.blocks import Block, encode
from weftline.providers.names import free_name

REPORT: Final = "final_report"
WRAPPED: Final = "output"
_UNIONS: Final = ("anyOf", "oneOf", "allOf")


class Report(Struct, frozen=True):
    """The tool with which the model gives a structured answer. If `wrapped`, the answer is its field `output`."""

    name: str
    tool: Block
    wrapped: bool
    instruction: str


def report_for(output: OutputSchema | None, taken: Set[str]) -> Report | None:
    """Returns the report tool for an output schema, under a name that no tool of the run has."""
    if output is None:
        return None
    name = free_name(REPORT, taken)
    schema, wrapped = _report_schema(bytes(output.schema))
    return Report(
        name=name,
        tool=Block(encode({"name": name, "description": prompts.models.ANSWER_TOOL, "input_schema": Raw(schema)})),
        wrapped=wrapped,
        instruction=prompts.models.answer_by_tool(name),
    )


@lru_cache(maxsize=1024)
def input_schema(parameters: bytes) -> bytes:
    schema = _decoded(parameters)
    if schema is not None and _is_plain_object(schema):
        return parameters
    return encode(_as_object(schema or {}))


@lru_cache(maxsize=256)
def _report_schema(schema: bytes) -> tuple[bytes, bool]:
    decoded = _decoded(schema)
    if decoded is not None and _is_plain_object(decoded):
        return schema, False
    if decoded is None:
        return encode({"type": "object"}), False
    # References are resolved from the top, so their targets have to stay there.
    shared = {name: decoded[name] for name in ("$defs", "definitions") if name in decoded}
    inner = {name: value for name, value in decoded.items() if name not in shared}
    wrapper = {"type": "object", "properties": {WRAPPED: inner}, "required": [WRAPPED], **shared}
    return encode(wrapper), True


def _decoded(schema: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(schema, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None


def _is_plain_object(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "object" and not any(name in schema for name in _UNIONS)


def _as_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns an object that allows whatever the schema allows.

    It has all properties of a union, required if all members require them.
    """
    result = {name: value for name, value in schema.items() if name not in _UNIONS}
    properties: dict[str, Any] = dict(result.get("properties") or {})
    required = set[str](result.get("required") or ())
    for union in _UNIONS:
        branches = [cast("dict[str, Any]", item) for item in schema.get(union) or () if isinstance(item, dict)]
        for branch in branches:
            for name, value in cast("dict[str, Any]", branch.get("properties") or {}).items():
                properties.setdefault(name, value)
        demands = [set[str](branch.get("required") or ()) for branch in branches]
        for name in {name for demand in demands for name in demand}:
            if union == "allOf" or all(name in demand for demand in demands):
                required.add(name)
    result.update(type="object", properties=properties)
    if required:
        result["required"] = sorted(required)
    return result


Schema: TypeAlias = dict[str, Any]

_KEPT: Final = frozenset({"type", "description", "title", "enum", "const"})
_NOTES: Final = frozenset(
    {"$schema", "$id", "$comment", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"}
)
"""Keywords that restrict nothing."""
_DESCRIBED: Final = frozenset(
    {
        "default", "format", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems",
    }
)  # fmt: skip
"""Keywords that can only be described in words."""
_HANDLED: Final = frozenset(
    {"properties", "required", "additionalProperties", "items", "anyOf", "oneOf", "allOf", "$defs", "definitions"}
)
_BESIDE_REFERENCES: Final = _NOTES | {"$ref", "$defs", "definitions", "title", "description", "default"}
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_DEFINITIONS: Final = ("$defs", "definitions")
_MAX_OPTIONAL: Final = 24
_MAX_UNIONS: Final = 16
_MAX_DEPTH: Final = 32


@lru_cache(maxsize=256)
def native_schema(schema: bytes) -> bytes | None:
    """Returns the schema to send, unchanged if possible; None if the API cannot enforce it."""
    try:
        given = msgspec.json.decode(schema, type=dict[str, Any])
        native = _Native(given).schema()
    except (msgspec.DecodeError, UnicodeError, RecursionError, _NotNative):
        return None
    return schema if native == given else msgspec.json.encode(native)


class _NotNative(Exception):
    """The API cannot enforce this schema."""


class _Native:
    """Walks one schema. References stay; their targets are walked where they are defined."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._optional = 0
        self._unions = 0

    def schema(self) -> Schema:
        top = self._target(self._root["$ref"]) if "$ref" in self._root else self._root
        if top.get("type") != "object" or self._repeats():
            raise _NotNative
        native = self._native(self._root, 0)
        if self._optional > _MAX_OPTIONAL or self._unions > _MAX_UNIONS:
            raise _NotNative
        return native

    def _native(self, value: object, depth: int) -> Schema:
        if not isinstance(value, dict) or depth > _MAX_DEPTH:
            raise _NotNative
        given = cast("Schema", value)
        out: Schema = {}
        for name in _DEFINITIONS:
            if name in given:
                out[name] = {key: self._native(one, depth + 1) for key, one in _object(given[name]).items()}
        if "$ref" in given:
            if given.keys() - _BESIDE_REFERENCES:
                raise _NotNative
            self._target(given["$ref"])
            # A reference may not have siblings.
            return {**out, "$ref": given["$ref"]}
        if given.keys() - _KEPT - _NOTES - _DESCRIBED - _HANDLED:
            raise _NotNative
        out |= {name: value for name, value in given.items() if name in _KEPT}
        self._check(given)
        members = [name for name in ("anyOf", "oneOf", "allOf") if name in given]
        if members:
            out["anyOf"] = self._alternatives(given, members, depth)
        elif "type" not in given and not given.keys() & {"enum", "const"}:
            raise _NotNative
        kinds = _kinds(given)
        if "object" in kinds:
            out |= self._closed(given, depth)
        if "array" in kinds:
            out["items"] = self._native(given.get("items"), depth + 1)
        return out | self._words(given, out)

    def _check(self, given: Schema) -> None:
        literals = [*_list(given.get("enum", [])), given.get("const")]
        if any(isinstance(one, dict | list) for one in literals) or ("enum" in given and not given["enum"]):
            raise _NotNative
        if len(_kinds(given)) > 1:
            self._unions += 1

    def _alternatives(self, given: Schema, members: list[str], depth: int) -> list[Schema]:
        branches = _list(given[members[0]])
        if len(members) > 1 or not branches or "type" in given or (members == ["allOf"] and len(branches) > 1):
            raise _NotNative
        self._unions += len(branches) > 1
        return [self._native(one, depth + 1) for one in branches]

    def _closed(self, given: Schema, depth: int) -> Schema:
        properties = _object(given.get("properties", {}))
        closed = given.get("additionalProperties")
        required = _list(given.get("required", []))
        # An object without named properties has free keys, unless it says otherwise.
        if closed not in (None, False) or not (properties or closed is False):
            raise _NotNative
        if not all(isinstance(name, str) and name in properties for name in required):
            raise _NotNative
        self._optional += len(properties) - len(required)
        return {
            "properties": {name: self._native(one, depth + 1) for name, one in properties.items()},
            **({"required": required} if "required" in given else {}),
            "additionalProperties": False,
        }

    def _words(self, given: Schema, out: Schema) -> Schema:
        kept: Schema = {}
        sentences: list[str] = []
        for name in given.keys() & _DESCRIBED:
            value = given[name]
            if (name == "format" and str(value) in _FORMATS) or (name == "minItems" and value in (0, 1)):
                kept[name] = value
            else:
                sentences.append(f"{name}: {msgspec.json.encode(value).decode()}")
        if sentences:
            words = f"({', '.join(sorted(sentences))})"
            kept["description"] = f"{out['description']} {words}" if out.get("description") else words
        return kept

    def _target(self, reference: object) -> Schema:
        parts = reference.split("/") if isinstance(reference, str) else []
        if len(parts) != 3 or parts[0] != "#" or parts[1] not in _DEFINITIONS:
            raise _NotNative
        found = _object(self._root.get(parts[1], {})).get(parts[2])
        if not isinstance(found, dict):
            raise _NotNative
        return cast("Schema", found)

    def _repeats(self) -> bool:
        """Returns True if a definition is recursive, which the API refuses."""
        edges = {
            f"#/{kind}/{name}": _references(one)
            for kind in _DEFINITIONS
            for name, one in _object(self._root.get(kind, {})).items()
        }
        settled: set[str] = set()
        while edges:
            free = {name for name, to in edges.items() if not to - settled}
            if not free:
                return True
            settled |= free
            edges = {name: to for name, to in edges.items() if name not in free}
        return False


def _references(value: object) -> set[str]:
    found: set[str] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            fields = cast("Schema", one)
            if isinstance(reference := fields.get("$ref"), str):
                found.add(reference)
            waiting.extend(fields.values())
        elif isinstance(one, list):
            waiting.extend(cast("list[object]", one))
    return found


def _kinds(schema: Schema) -> set[str]:
    kind = schema.get("type")
    return {kind} if isinstance(kind, str) else {one for one in _list(kind) if isinstance(one, str)}


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
