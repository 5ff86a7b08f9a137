"""Checks results that somebody provides in place of a tool against what the tool declares."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from weftline.text.canonical import canonical_value
from weftline.tools.base import Tool
from weftline.tools.checking import issues_of
from weftline.tools.return_types import listed


async def result_problem(tool: Tool, value: object) -> str:
    """Returns what is wrong with a JSON value as a result of the tool; empty if nothing is.

    Null is valid only for a tool that declares a result type or schema which allows it. A text may be the JSON of a
    result.
    """
    check = getattr(tool, "result_problem", None)
    schema = tool.spec.output_schema
    if value is None and (check is None or not getattr(tool, "has_result_type", False)) and schema is UNSET:
        return "the tool does not return null"
    if check is not None and (problem := check(value)):
        return problem
    if schema is UNSET:
        return ""
    issues = await issues_of(canonical_value(value), schema)
    if issues and isinstance(value, str) and _is_json(value):
        issues = await issues_of(value.encode(), schema)
    return listed([(_steps(one.path), one.message) for one in issues])


def _steps(pointer: str) -> list[int | str]:
    named = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    return [int(step) if step.isascii() and step.isdigit() else step for step in named]


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True
