"""Tool schemas that are accepted but not used, because their root is not an object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast

from weftline.wire.unknown_fields import MAX_LISTED, UnknownField

CODE: Final = "unused_schema"
_PROBLEM = "is not the schema of an object"


def unused_schemas(tools: Sequence[Mapping[str, Any]] | None) -> tuple[UnknownField, ...]:
    """Returns the first few of a valid request."""
    return tuple(islice(_unused(tools or ()), MAX_LISTED))


def _unused(tools: Sequence[Mapping[str, Any]]) -> Iterator[UnknownField]:
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if tool["kind"] == "local":
            if _is_lost(tool.get("parameters"), with_properties=True):
                yield UnknownField(f"{at}.parameters", problem=f"{_PROBLEM} with `properties`", code=CODE)
            if _is_lost(tool.get("outputSchema"), with_properties=False):
                yield UnknownField(f"{at}.outputSchema", problem=_PROBLEM, code=CODE)
        elif tool["kind"] == "mcp_local":
            for place, entry in enumerate(tool["tools"]):
                if _is_lost(entry.get("inputSchema"), with_properties=False):
                    yield UnknownField(f"{at}.tools[{place}].inputSchema", problem=_PROBLEM, code=CODE)


def _is_lost(schema: object, *, with_properties: bool) -> bool:
    """Whether a schema has content that is not used. A schema for any object has none."""
    if not isinstance(schema, dict):
        return schema is not None
    root = cast("dict[str, object]", schema)
    if root.get("type") != "object":
        return bool(root)
    return with_properties and not isinstance(root.get("properties", {}), dict)
