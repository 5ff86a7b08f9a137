"""Converts arguments of the wrong type whose meaning is unambiguous: `"3"` for a number, `"yes"` for a boolean.

This applies to an agent's tools only; over HTTP, a client's schema is enforced as it stands. Only top-level arguments
are converted, and valid ones are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Raw

from weftline.text.json_size import is_modest

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
