"""Schemas for the Anthropic Messages API: the input of a tool, and the report tool for an output schema.

The API requires an object at the top of `input_schema`, without a union. Such a schema is sent verbatim; any other is
repaired to the nearest object, and the arguments are checked against the original when the tool is called.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from typing import Any, Final, cast

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
