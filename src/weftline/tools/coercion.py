"""Arguments of the wrong type: converted where the meaning is clear, and otherwise a hint for the next call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Raw

from weftline import prompts
from weftline.failure import Constraint, Failure, FieldIssue, Hint
from weftline.messages import ToolCall
from weftline.text.json_size import is_modest
from weftline.tools.arguments import InvalidArguments, Issue, object_args
from weftline.tools.base import Tool

_TRUE = frozenset({"true", "yes", "1"})
_FALSE = frozenset({"false", "no", "0"})
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_MAX_DIGITS = 4000
_FAILED = object()


class Coercion(NamedTuple):
    """One argument that was converted: its name, and its value before and after."""

    path: str
    before: object
    after: object


def coerced(args: Mapping[str, Any], schema: Raw | bytes) -> dict[str, Any] | None:
    """Returns the arguments with those of the wrong type converted; None if none could be.

    A call that lacks a required argument is left alone.
    """
    shape = _object(msgspec.json.decode(schema))
    properties = _object(shape.get("properties"))
    required = shape.get("required")
    for name in cast("list[object]", required) if isinstance(required, list) else []:
        if args.get(str(name)) is None:
            return None
    changed: dict[str, Any] = {}
    for name, value in args.items():
        types = _types(properties.get(name), shape)
        if not types or _fits(value, types):
            continue
        for kind in types:
            made = _converted(value, kind)
            if made is not _FAILED:
                changed[name] = made
                break
    return {**args, **changed} if changed else None


def coercions(raw: Mapping[str, Any], final: Mapping[str, Any]) -> tuple[Coercion, ...]:
    """Returns the arguments that were converted. Defaults that were added do not count."""
    return tuple(
        Coercion(name, before, final[name])
        for name, before in raw.items()
        if name in final and (final[name] != before or isinstance(final[name], bool) != isinstance(before, bool))
    )


def _types(schema: object, root: Mapping[str, Any], depth: int = 8) -> list[str]:
    """Returns the JSON types that a schema allows, in its order; empty if it does not restrict them."""
    if not isinstance(schema, dict) or not depth:
        return []
    one = cast("dict[str, Any]", schema)
    reference = one.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        return _types(_object(root.get("$defs")).get(reference[8:]), root, depth - 1)
    kind = one.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [str(name) for name in cast("list[object]", kind)]
    found: list[str] = []
    for word in ("anyOf", "oneOf"):
        members = one.get(word)
        for member in cast("list[object]", members) if isinstance(members, list) else []:
            types = _types(member, root, depth - 1)
            if not types:
                return []  # a member that allows any type
            found += types
    return found


def _fits(value: object, types: list[str]) -> bool:
    match value:
        case None:
            return "null" in types
        case bool():
            return "boolean" in types
        case int():
            return "integer" in types or "number" in types
        case float():
            return "number" in types or ("integer" in types and value.is_integer())
        case str():
            return "string" in types
        case list():
            return "array" in types
        case _:
            return "object" in types


def _converted(value: object, kind: str) -> object:
    """Returns the value converted to the type, or `_FAILED`."""
    if kind == "string" and isinstance(value, bool | int | float):
        return msgspec.json.encode(value).decode()
    if not isinstance(value, str):
        return _FAILED
    text = value.strip()
    match kind:
        case "boolean":
            word = text.lower()
            return True if word in _TRUE else False if word in _FALSE else _FAILED
        case "integer" | "number":
            return _number(text, whole=kind == "integer")
        case "array" | "object":
            return _parsed(text, list if kind == "array" else dict)
        case _:
            return _FAILED


def _number(text: str, *, whole: bool) -> object:
    if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
        return _FAILED
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    value = float(text)
    if whole:
        return int(value) if value.is_integer() and abs(value) < 2**53 else _FAILED
    return value if abs(value) < float("inf") else _FAILED


def _parsed(text: str, kind: type) -> object:
    if not is_modest(text):
        return _FAILED
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return _FAILED
    return value if isinstance(value, kind) else _FAILED


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


PAYLOAD = "$payload"
"""The field name of an issue that concerns the arguments as a whole."""
MAX_FIELDS_ASKED = 3
MAX_PRIOR_CHARS = 16 * 1024
"""Longer arguments are not repeated in a hint, as the call has them."""

_REQUIRED = re.compile(r'"(.*)" is a required property')
# Error types of pydantic and keywords of JSON Schema; any other means a wrong type.
_WORDS: dict[Constraint, frozenset[str]] = {
    "missing_field": frozenset({"missing", "missing_argument", "required", "dependentRequired"}),
    "invalid_enum_value": frozenset({"enum", "literal_error", "const", "constant"}),
    "invalid_pattern": frozenset({"pattern", "string_pattern_mismatch"}),
    "invalid_range": frozenset(
        {
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
            "greater_than",
            "greater_than_equal",
            "less_than",
            "less_than_equal",
            "multiple_of",
            "finite_number",
        }
    ),
    "invalid_length": frozenset(
        {
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "string_too_short",
            "string_too_long",
            "too_short",
            "too_long",
            "bytes_too_short",
            "bytes_too_long",
        }
    ),
    "invalid_format": frozenset({"format"}),
}
_FORMATS = ("date", "time", "url", "uuid", "email", "ip_", "decimal", "datetime", "value_error")
"""Prefixes of pydantic's error types for texts with an invalid format."""


def invalid_arguments(tool: Tool, call: ToolCall, error: InvalidArguments) -> Failure:
    """Returns why a call was not made, and what the model needs to make it."""
    issues = tuple([_issue(one) for one in error.issues])
    missing = tuple([one.field for one in issues if one.constraint == "missing_field"])
    hint = Hint(
        "missing_fields" if missing else "invalid_arguments",
        error.message,
        tool.spec.name,
        restrict_to_tool=True,
        missing_fields=missing,
        issues=issues,
        example_input=example_of(tool),
        prior_input=_prior(call.args),
        clarifying_question=_question(tool, issues),
    )
    return Failure(error.message, "invalid_call", hint=hint)


def example_of(tool: Tool) -> dict[str, Any] | None:
    """Returns example arguments of a tool: its own, or the first of its schema."""
    if tool.traits.example is not None:
        return dict(tool.traits.example)
    examples = _schema(tool).get("examples")
    first = cast("list[object]", examples)[0] if isinstance(examples, list) and examples else None
    return cast("dict[str, Any]", first) if isinstance(first, dict) else None


def _issue(one: Issue) -> FieldIssue:
    field = ".".join([step.replace("~1", "/").replace("~0", "~") for step in one.path.split("/")[1:]])
    if one.constraint == "json" and not one.path:
        return FieldIssue(PAYLOAD, "missing_field", one.message)
    found: Constraint | None = next((name for name, words in _WORDS.items() if one.constraint in words), None)
    if found == "missing_field" and (named := _REQUIRED.match(one.message)):
        # JSON Schema reports where something is missing, and names it only in the message.
        field = f"{field}.{named[1]}" if field else named[1]
    if found is None and one.constraint.startswith(_FORMATS):
        found = "invalid_format"
    return FieldIssue(field or PAYLOAD, found or "invalid_field_type", one.message)


def _question(tool: Tool, issues: tuple[FieldIssue, ...]) -> str:
    """Returns what a person is asked for: at most three arguments, each with its description."""
    fields = list(dict.fromkeys([one.field for one in issues if one.field != PAYLOAD]))[:MAX_FIELDS_ASKED]
    if not fields:
        return prompts.failure.ask_what_to_call(tool.spec.name)
    properties = _object(_schema(tool).get("properties"))
    return prompts.failure.ask_for_values(tool.spec.name, [_about(name, properties) for name in fields])


def _about(field: str, properties: Mapping[str, Any]) -> str:
    schema = _object(properties.get(field))
    description = schema.get("description")
    allowed = schema.get("enum")
    words = [description.rstrip(".")] if isinstance(description, str) and description else []
    if isinstance(allowed, list) and allowed:
        words.append("one of " + ", ".join([str(value) for value in cast("list[object]", allowed)[:10]]))
    return f"{field} ({'; '.join(words)})" if words else field


def _prior(args: str) -> dict[str, Any] | None:
    if len(args) > MAX_PRIOR_CHARS:
        return None
    try:
        return dict(object_args(args)[0])
    except InvalidArguments:
        return None


def _schema(tool: Tool) -> dict[str, Any]:
    parameters: Raw | bytes = tool.spec.parameters
    try:
        return _object(msgspec.json.decode(bytes(parameters)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
