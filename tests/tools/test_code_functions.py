"""Tools as functions of code: names, signatures, arguments, results."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Literal

import pytest
from mcp.types import CallToolResult
from pydantic import BaseModel

from weftline import prompts, tool
from weftline.messages import Text
from weftline.tools.base import ToolFailed, ToolOutput
from weftline.tools.builtin.code_functions import (
    CodeFunction,
    function_name,
    function_of,
    python,
    typescript,
    value_of,
    written_args,
)
from weftline.tools.mcp.tools import output_of as mcp_output
from weftline.tools.results import output_of


class Kind(Enum):
    BOOK = "book"
    PEN = "pen"


class Line(BaseModel):
    sku: str
    kind: Kind = Kind.BOOK


@tool
def order(lines: list[Line], to: str | None = None, speed: Literal["slow", "fast"] = "slow", pieces: int = 1) -> str:
    """Orders something.

    Args:
        lines: What to order.
        to: Whom to send it to, and
            where that is.
    """
    return ""


@tool
def stop() -> None:
    """Stops it. /* Really. */"""


def of(one: Any) -> CodeFunction:
    spec = one.spec
    return function_of(spec.name, name=spec.name, description=spec.description, parameters=bytes(spec.parameters))


def plain(schema: dict[str, Any], **more: Any) -> CodeFunction:
    parameters = {"type": "object", "properties": {"x": schema}, **more}
    return function_of("f", name="f", description="", parameters=json.dumps(parameters).encode())


def test_a_typescript_signature_has_types_optional_fields_and_descriptions() -> None:
    assert typescript(of(order)) == (
        "/** Orders something.\n"
        " * @param args.lines What to order.\n"
        " * @param args.to Whom to send it to, and where that is. */\n"
        'function order(args: {lines: {sku: string; kind?: "book" | "pen"}[]; to?: string | null;'
        ' speed?: "slow" | "fast"; pieces?: number}): Promise<any>'
    )
    assert typescript(of(stop)) == "/** Stops it. /* Really. * / */\nfunction stop(args?: {}): Promise<any>"


def test_a_python_signature_has_keywords_with_defaults() -> None:
    assert python(of(order)) == (
        "async def order(*, lines: list[{\"sku\": str, \"kind\": Literal['book', 'pen']}], to: str | None = None,"
        " speed: Literal['slow', 'fast'] = 'slow', pieces: int = 1) -> Any: ...\n"
        "    # Orders something.\n"
        "    # lines: What to order.\n"
        "    # to: Whom to send it to, and where that is."
    )
    assert python(of(stop)) == "async def stop() -> Any: ...\n    # Stops it. /* Really. */"


@pytest.mark.parametrize(
    ("schema", "in_typescript", "in_python"),
    [
        ({"type": ["string", "null"]}, "string | null", "str | None"),
        ({"type": "array", "items": {"type": ["integer", "string"]}}, "(number | string)[]", "list[int | str]"),
        ({"type": "object"}, "Record<string, any>", "dict[str, Any]"),
        ({"additionalProperties": {"type": "boolean"}, "type": "object"}, "Record<string, boolean>", "dict[str, bool]"),
        ({"const": 3}, "3", "Literal[3]"),
        ({}, "any", "Any"),
        ({"$ref": "#/elsewhere"}, "any", "Any"),
        ({"properties": {"a-b": {"type": "number"}}, "required": ["a-b"]}, '{"a-b": number}', '{"a-b": float}'),
        ({"enum": ["x" * 3000]}, "any", "Any"),
    ],
)
def test_schemas_become_types(schema: dict[str, Any], in_typescript: str, in_python: str) -> None:
    assert f"x?: {in_typescript}}}" in typescript(plain(schema))
    assert f"x: {in_python} = ..." in python(plain(schema))


def test_a_schema_that_contains_itself_ends_somewhere() -> None:
    defs = {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}}
    signature = typescript(plain({"$ref": "#/$defs/Node"}, **{"$defs": defs}))
    assert "any" in signature
    assert len(signature) < 1000


def test_function_has_name_that_is_free_in_every_language() -> None:
    assert function_name("search") == "search"
    assert function_name("a-b.c") == "a_b_c"
    assert function_name("3d") == "_3d"
    assert function_name("delete") == "delete_"
    assert function_name("print") == "print_"
    assert function_name("Date") == "Date_"
    assert function_name("a-b", frozenset({"a_b"})) == "a_b_"


def test_arguments_are_object_or_in_order_of_signature() -> None:
    function = of(order)
    assert written_args(function, [{"lines": [], "to": "Ann"}]) == '{"lines":[],"to":"Ann"}'
    assert written_args(function, [[], "Ann"]) == '{"lines":[],"to":"Ann"}'
    assert written_args(function, [[], {"to": "Ann"}]) == '{"lines":[],"to":"Ann"}'
    assert written_args(function, []) == "{}"
    with pytest.raises(ToolFailed, match="at most 4 arguments, not 5"):
        written_args(function, [1, 2, 3, 4, 5])
    with pytest.raises(ToolFailed, match="was given lines twice"):
        written_args(function, [[], {"lines": []}])
    with pytest.raises(ToolFailed, match=prompts.code.NO_BYTES):
        written_args(function, [{"to": b"x"}])
    taking = plain({"type": "object"})
    assert written_args(taking, [{"x": {"a": 1}}]) == '{"x":{"a":1}}'


def test_result_is_an_object_list_or_text() -> None:
    assert value_of(ToolOutput.of('{"a": 1}')) == {"a": 1}
    assert value_of(ToolOutput.of("[1]")) == [1]
    assert value_of(ToolOutput.of("5")) == "5"
    assert value_of(ToolOutput.of("{not")) == "{not"
    assert value_of(ToolOutput.of(edge := f"[{'1e300,' * 6_000}1]")) == edge
    assert value_of(ToolOutput((Text("a"), Text("b")))) == "a\nb"


@pytest.mark.parametrize("value", [5, 2**70, 0.5, True, None, Kind.PEN, {"a": 1}, [1]])
def test_a_result_is_what_a_function_of_ours_returned(value: object) -> None:
    assert value_of(output_of(value, tool_name="look")) == (value.value if isinstance(value, Kind) else value)


@pytest.mark.parametrize("text", ["5", "true", "null", '"pen"', "NaN", ""])
def test_a_text_that_a_function_returned_stays_a_text(text: str) -> None:
    assert value_of(output_of(text, tool_name="look")) == text


def test_result_of_mcp_server_is_value_that_it_wraps() -> None:
    def result(text: str, structured: object) -> ToolOutput:
        content = [{"type": "text", "text": text}]
        return mcp_output(CallToolResult.model_validate({"content": content, "structuredContent": structured}))

    assert value_of(result("5", {"result": 5})) == 5
    assert value_of(result("true", {"result": True})) is True
    assert value_of(result("5", {"result": "5"})) == "5"
    assert value_of(result("5", {"result": 6})) == "5"
    assert value_of(result("5", None)) == "5"
