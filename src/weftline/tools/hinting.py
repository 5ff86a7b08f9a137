"""Turns what is wrong with the arguments of a call into a hint for the next one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec import Raw

from weftline import prompts
from weftline.failure import Constraint, Failure, FieldIssue, Hint
from weftline.messages import ToolCall
from weftline.tools.arguments import InvalidArguments, Issue, object_args
from weftline.tools.base import Tool

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
    own = getattr(tool, "example", None)
    if isinstance(own, Mapping):
        return dict(cast("Mapping[str, Any]", own))
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


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
