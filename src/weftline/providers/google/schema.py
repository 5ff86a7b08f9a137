"""JSON Schema for Gemini's function declarations.

Gemini supports a subset of JSON Schema and answers 400 to some of the rest. A schema inside the subset is sent byte for
byte; in any other, unsupported keywords are translated if possible and left out otherwise. That only loses guidance:
arguments are validated against the tool's own schema.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Raw

_KEPT = frozenset(
    {
        "$anchor",
        "$defs",
        "$id",
        "$ref",
        "additionalProperties",
        "anyOf",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maximum",
        "maxLength",
        "minItems",
        "minimum",
        "minLength",
        "nullable",
        "oneOf",
        "pattern",
        "prefixItems",
        "properties",
        "propertyOrdering",
        "required",
        "title",
        "type",
    }
)
_MAPS = ("properties", "$defs")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_NOTED = {
    "exclusiveMinimum": "greater than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
}
_TYPE_NAMES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}

Schema = dict[str, Any]


def accepted(schema: Raw) -> Raw:
    """Returns `schema` itself if Gemini accepts it as it is, otherwise a repaired copy."""
    try:
        value: Any = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError):
        return schema
    repaired = _repaired(value)
    return schema if repaired == value else Raw(msgspec.json.encode(repaired))


def _repaired(value: Any) -> Any:
    if isinstance(value, bool):
        # `true` allows anything, as the empty schema does, but Gemini only accepts objects.
        return {}
    if not isinstance(value, dict):
        return value
    schema = _merged(dict(cast("Schema", value)))
    _rename(schema)
    _translate(schema)
    result: Schema = {}
    for key, child in schema.items():
        if key not in _KEPT:
            continue
        if key in _MAPS and isinstance(child, dict):
            result[key] = {name: _repaired(item) for name, item in cast("Schema", child).items()}
        elif key in _LISTS and isinstance(child, list):
            result[key] = [_repaired(item) for item in cast("list[Any]", child)]
        elif key == "items" or (key == "additionalProperties" and isinstance(child, dict)):
            result[key] = _repaired(child)
        else:
            result[key] = child
    return result


def _merged(schema: Schema) -> Schema:
    """Merges the schemas of `allOf`: properties and required names of all; for the rest, the outermost wins."""
    parts = schema.pop("allOf", None)
    if not isinstance(parts, list):
        return schema
    for part in cast("list[Any]", parts):
        if not isinstance(part, dict):
            continue
        for key, value in _merged(dict(cast("Schema", part))).items():
            if key == "properties":
                schema[key] = {**value, **schema.get(key, {})}
            elif key == "required":
                schema[key] = list(dict.fromkeys([*schema.get(key, []), *value]))
            else:
                schema.setdefault(key, value)
    return schema


def _rename(schema: Schema) -> None:
    if "definitions" in schema and "$defs" not in schema:
        schema["$defs"] = schema.pop("definitions")
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/definitions/"):
        schema["$ref"] = "#/$defs/" + reference.removeprefix("#/definitions/")


def _translate(schema: Schema) -> None:
    if "const" in schema:
        constant: object = schema.pop("const")
        schema["enum"] = [constant]
        type_name = _TYPE_NAMES.get(type(constant))
        if type_name is not None:
            schema.setdefault("type", type_name)
    notes = [text.format(schema[key]) for key, text in _NOTED.items() if isinstance(schema.get(key), int | float)]
    if notes:
        described = schema.get("description")
        note = f"Must be {' and '.join(notes)}."
        schema["description"] = f"{described} {note}" if described else note
