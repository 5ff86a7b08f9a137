"""Which schemas the arguments of a tool may have, and how they are shown to models.

The thread specification allows a small set of nodes, so that every model API accepts them: strings, numbers, booleans,
null, literals, any JSON value, arrays of one type, objects, records and unions, at most `DEPTH` of them (and of the
wrappers optional, nullable and default) above a leaf.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

DEPTH = 7
MAX_DEPTH = 10
"""The most that may be configured."""
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})
_REFUSED = {
    "prefixItems": "is a tuple; give a list of one type, or an object",
    "patternProperties": "has names by pattern; give a record, `dict[str, …]`",
    "not": "is a negation, which models do not follow",
    "if": "has conditions, which models do not follow",
}

Schema = Mapping[str, Any]


def schema_problems(schema: Schema, *, depth: int = DEPTH) -> Iterator[tuple[str, str]]:
    """Yields what tools may not have, as path and message; the path of the root is empty."""
    if schema.get("type", "object") != "object" or "anyOf" in schema or "oneOf" in schema:
        yield "", "must be an object"
        return
    defs = cast(Schema, schema.get("$defs", {}))
    yield from _of_object(schema, "", min(depth, MAX_DEPTH), defs, ())


def strict_schema(schema: Schema) -> dict[str, Any]:
    """Returns the schema as models see it: no object takes other properties, except records, which keep their type."""
    return cast("dict[str, Any]", _strict(schema))


def _strict(node: object) -> object:
    if isinstance(node, list):
        return [_strict(one) for one in cast("list[object]", node)]
    if not isinstance(node, Mapping):
        return node
    given = cast("Mapping[str, object]", node)
    made: dict[str, object] = {}
    for name, value in given.items():
        if name in ("properties", "$defs"):
            made[name] = {key: _strict(one) for key, one in cast("Mapping[str, object]", value).items()}
        else:
            made[name] = value if name in ("default", "const", "enum", "examples") else _strict(value)
    if given.get("type") == "object" and "additionalProperties" not in given:
        made["additionalProperties"] = False
    if made.get("additionalProperties") is True:
        made["additionalProperties"] = {} if not given.get("properties") else False
    return made


def _of_object(node: Schema, path: str, left: int, defs: Schema, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    required = cast("list[str]", node.get("required", []))
    for name, value in cast("Mapping[str, Schema]", node.get("properties", {})).items():
        wrapped = name not in required or "default" in value
        yield from _of(value, f"{path}.{name}" if path else name, left - wrapped, defs, above)
    extra = node.get("additionalProperties")
    if isinstance(extra, Mapping):
        yield from _of(cast(Schema, extra), f"{path}.*" if path else "*", left, defs, above)


def _of(node: Schema, path: str, left: int, defs: Schema, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """`left` is how many containers and wrappers may still come above a leaf."""
    if left < 0:
        yield path, "is nested too deeply"
        return
    ref = node.get("$ref")
    if isinstance(ref, str):
        if ref in above:
            yield path, f"is recursive: {ref.rpartition('/')[2]} contains itself"
            return
        target = cast("Schema | None", defs.get(ref.rpartition("/")[2]))
        if target is None:
            yield path, f"refers to {ref}, which is not there"
        else:
            yield from _of(target, path, left, defs, (*above, ref))
        return
    for word, problem in _REFUSED.items():
        if word in node:
            yield path, problem
            return
    together = cast("list[Schema]", node.get("allOf", []))
    if len(together) > 1:
        yield path, "is an intersection; give one object with all fields"
    elif together:
        yield from _of(together[0], path, left, defs, above)
    elif branches := cast("list[Schema]", node.get("anyOf") or node.get("oneOf") or []):
        yield from _of_union(branches, path, left, defs, above)
    elif "const" in node or "enum" in node:
        values = cast("list[object]", node.get("enum", [node.get("const")]))
        if not all(value is None or isinstance(value, str | int | float | bool) for value in values):
            yield path, "has a literal that is not text, a number, a boolean or null"
    else:
        yield from _of_type(node, path, left, defs, above)


def _of_union(
    branches: list[Schema], path: str, left: int, defs: Schema, above: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    others = [one for one in branches if one.get("type") != "null"]
    nullable, union = len(others) < len(branches), len(others) > 1
    for one in others:
        yield from _of(one, path, left - nullable - union, defs, above)


def _of_type(node: Schema, path: str, left: int, defs: Schema, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    kind = node.get("type")
    if isinstance(kind, list):
        branches = [{**node, "type": one} for one in cast("list[str]", kind)]
        yield from _of_union(cast("list[Schema]", branches), path, left, defs, above)
    elif kind == "array":
        items = node.get("items", {})
        if isinstance(items, Mapping):
            yield from _of(cast(Schema, items), f"{path}[]", left - 1, defs, above)
        else:
            yield path, _REFUSED["prefixItems"]
    elif kind == "object":
        if left < 1:
            yield path, "is nested too deeply"
        else:
            yield from _of_object(node, path, left - 1, defs, above)
    elif kind is not None and kind not in _SCALARS:
        yield path, f"has the type {kind!r}, which JSON does not have"
