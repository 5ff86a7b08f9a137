"""Validates values against untrusted schemas, with bounded work.

A small schema with a known cost is checked directly. Everything else (recursive unions, patterns with look-around, long
lists) goes to a process that is killed if it takes too long; see `weftline.work.processes`.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw

from weftline import prompts
from weftline.providers.base import ToolSpec
from weftline.text.canonical import canonical_value
from weftline.text.schema_cost import Cost, TooCostly, measured
from weftline.tools.arguments import InvalidArguments, Issue, described, drop_nulls, object_args
from weftline.tools.base import Tool
from weftline.tools.counted_type import listed
from weftline.tools.function import FunctionTool
from weftline.tools.schema import ArgsValidator
from weftline.work.processes import GaveUp, shared_workers

logger = logging.getLogger(__name__)

MAX_STEPS_ON_LOOP = 50_000
"""This takes a few milliseconds."""
MAX_EXPLAIN_STEPS_ON_LOOP = 1_000
"""Explaining what is wrong costs 20 µs per step or more, as every variant of a union has its own reasons."""
MAX_VALUES_ON_LOOP = 2_000
"""The limit for a schema that is compiled in this process."""
_BYTES_A_STEP = 256
_PATTERN_STATES_A_STEP = 16
_EXPLAIN = "weftline.tools.checking:explain_job"
_FITS = "weftline.tools.checking:fits_job"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Issue, ...] | None).decode


async def checked_args(args: str, spec: ToolSpec) -> bytes:
    """Returns the arguments of a call as bytes, without nulls for optional members that may not be null.

    Raises `InvalidArguments` unless they are an object that fits the schema.
    """
    value, data = object_args(args)
    issues = await issues_of(data, spec.parameters)
    if issues and drop_nulls(value, issues):
        data = canonical_value(value)
        if not await issues_of(data, spec.parameters):
            return data
    if issues:
        raise InvalidArguments(described(spec.name, issues), issues)
    return data


async def issues_of(value: bytes, schema: bytes | Raw) -> tuple[Issue, ...]:
    """Returns what is wrong with `value` (JSON), at most 20 issues. A value that takes too long to check is wrong.

    A schema that cannot be compiled is not enforced.
    """
    schema = bytes(schema)
    cost = _cost(schema)
    if cost is not None and (steps := _steps(cost, value)) <= MAX_STEPS_ON_LOOP:
        validator = ArgsValidator.of(schema, linear=True)
        if validator.enforced and (steps <= MAX_EXPLAIN_STEPS_ON_LOOP or validator.fits(value)):
            return validator.validate(value)
    try:
        return _decode(await shared_workers().run(_EXPLAIN, value, schema)) or ()
    except GaveUp as error:
        logger.warning("a value of %d bytes took too long to check against its schema: %s", len(value), error)
    # Listing the issues can take far longer than finding out whether there are any.
    try:
        fits = await shared_workers().run(_FITS, value, schema)
    except GaveUp:
        return (Issue("", prompts.calls.TOO_MUCH_TO_CHECK, "work"),)
    return () if fits else (Issue("", prompts.calls.TOO_MUCH_TO_LIST, "work"),)


async def can_be_checked(schema: bytes | Raw) -> bool:
    """Returns True if values can be checked against a schema at all, which must compile on its own."""
    if _cost(bytes(schema)) is not None and ArgsValidator.of(schema, linear=True).enforced:
        return True
    try:
        return _decode(await shared_workers().run(_EXPLAIN, b"null", bytes(schema))) is not None
    except GaveUp:
        return False


def explain_job(value: bytes, schema: bytes) -> bytes:
    """Returns the issues, or null for a schema that is not enforced. Runs in a worker."""
    validator = ArgsValidator.of(schema)
    return _encode(validator.validate(value) if validator.enforced else None)


def fits_job(value: bytes, schema: bytes) -> bytes:
    """Returns non-empty bytes if the value fits. Runs in a worker."""
    return b"fits" if ArgsValidator.of(schema).fits(value) else b""


@lru_cache(maxsize=512)
def _cost(schema: bytes) -> Cost | None:
    """Returns the cost of a schema; None if it is unbounded, or too large to be compiled here."""
    try:
        cost = measured(msgspec.json.decode(schema))
    except (TooCostly, msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return cost if cost.bounded and cost.values <= MAX_VALUES_ON_LOOP else None


def _steps(cost: Cost, value: bytes) -> int:
    # This also counts commas and brackets inside strings, so it may overestimate.
    values = 1 + value.count(b",") + value.count(b":") + value.count(b"{") + value.count(b"[")
    size = len(value)
    return cost.values * (values + size // _BYTES_A_STEP) + cost.pattern_states * size // _PATTERN_STATES_A_STEP


async def result_problem(tool: Tool, value: object) -> str:
    """Returns what is wrong with a JSON value as a result of the tool; empty if nothing is.

    Null is valid only for a tool that declares a result type or schema which allows it. A text may be the JSON of a
    result.
    """
    function = cast("FunctionTool[..., Any, Any]", tool) if isinstance(tool, FunctionTool) else None
    schema = tool.spec.output_schema
    if value is None and (function is None or not function.has_result_type) and schema is UNSET:
        return "the tool does not return null"
    if function is not None and (problem := function.result_problem(value)):
        return problem
    if schema is UNSET:
        return ""
    issues = await issues_of(canonical_value(value), schema)
    if issues and isinstance(value, str) and _is_json(value):
        issues = await issues_of(value.encode(), schema)
    return listed([(_result_steps(one.path), one.message) for one in issues])


def _result_steps(pointer: str) -> list[int | str]:
    named = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    return [int(step) if step.isascii() and step.isdigit() else step for step in named]


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True
