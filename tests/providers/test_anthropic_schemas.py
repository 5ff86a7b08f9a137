"""Answers of the Messages API that follow a schema: by the API's own means, or through a report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from anthropic_requests import CITY, SCHEMA, WITH_REPORT, body, request, send, tool
from msgspec import Raw

from weftline.providers.base import OutputSchema, ToolSpec


@pytest.mark.requirement("provider.schema.anthropic")
async def test_report_is_forced_on_turn_without_other_tools_only() -> None:
    alone = await send(request(model=WITH_REPORT, output_schema=CITY))
    sent = json.loads(alone.body)
    assert [declared["name"] for declared in sent["tools"]] == ["final_report"]
    assert b'"input_schema":' + SCHEMA in alone.body
    assert (sent["tool_choice"]["type"], sent["tool_choice"]["name"]) == ("tool", "final_report")
    beside = await body(request(model=WITH_REPORT, output_schema=CITY, tools=[tool("look")]))
    assert [declared["name"] for declared in beside["tools"]] == ["look", "final_report"]
    assert beside["tool_choice"] == {"type": "auto"}
    final = await body(request(model=WITH_REPORT, output_schema=CITY, tools=[tool("look")], tools_disabled=True))
    assert [declared["name"] for declared in final["tools"]] == ["final_report"]
    assert final["tool_choice"]["name"] == "final_report"


NATIVE = [
    "claude-opus-4-1",
    "claude-haiku-4-5",
    "claude-opus-4-7",
    "claude-sonnet-5",
    "claude-opus-5-5",
    "claude-fable-5",
]


@pytest.mark.parametrize("model", NATIVE)
async def test_model_with_schema_support_gets_it_as_output_format(model: str) -> None:
    closed = {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False}
    expected = {"type": "json_schema", "schema": closed}
    sent = await body(request(model=model, output_schema=CITY))
    assert sent["output_config"] == {"format": expected}
    assert not {"tools", "tool_choice"} & sent.keys()
    final = await body(request(model=model, output_schema=CITY, tools=[tool("look")], tools_disabled=True))
    assert [one["name"] for one in final["tools"]] == ["look"]
    assert final["tool_choice"] == {"type": "none"}
    thinking = await body(request(model=model, output_schema=CITY, reasoning=50))
    assert thinking["output_config"]["format"] == expected
    assert thinking["thinking"]["type"] in ("enabled", "adaptive")
    assert ("effort" in thinking["output_config"]) is (thinking["thinking"]["type"] == "adaptive")


async def test_a_schema_that_fits_goes_out_byte_for_byte() -> None:
    schema = (
        b'{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false}'
    )
    sent = await send(request(output_schema=OutputSchema("a", Raw(schema))))
    assert b'"schema":' + schema in sent.body


@pytest.mark.parametrize(
    ("schema", "native"),
    [
        (
            {"type": "integer", "minimum": 1, "maximum": 9, "description": "How many."},
            {"type": "integer", "description": "How many. (maximum: 9, minimum: 1)"},
        ),
        (
            {"type": "string", "format": "uri", "minLength": 1},
            {"type": "string", "format": "uri", "description": "(minLength: 1)"},
        ),
        ({"oneOf": [{"const": "a"}, {"type": "null"}]}, {"anyOf": [{"const": "a"}, {"type": "null"}]}),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "description": "(maxItems: 3)"},
        ),
    ],
)  # fmt: skip
async def test_unenforceable_schema_is_described_in_words(schema: dict[str, Any], native: dict[str, Any]) -> None:
    whole = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    sent = await body(request(output_schema=OutputSchema("a", Raw(json.dumps(whole).encode()))))
    assert sent["output_config"]["format"]["schema"] == {**whole, "properties": {"a": native}}


NOT_NATIVE: list[dict[str, Any]] = [
    {"type": "array", "items": {"type": "string"}},
    {"anyOf": [{"type": "object"}, {"type": "object"}]},
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "string"}},
    {"type": "object", "properties": {"a": {"type": "object", "additionalProperties": True}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"type": "object", "properties": {"a": {"not": {}}}},
    {"type": "object", "properties": {"a": {"enum": [{}]}}},
    {"type": "object", "properties": {"a": {"$ref": "https://example.org/a"}}},
    {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(25)}},
]


@pytest.mark.parametrize("schema", NOT_NATIVE, ids=lambda one: json.dumps(one)[:50])
async def test_a_schema_that_cannot_be_held_to_becomes_a_report(schema: dict[str, Any]) -> None:
    sent = await body(request(output_schema=OutputSchema("a", Raw(json.dumps(schema).encode()))))
    assert "output_config" not in sent
    assert [one["name"] for one in sent["tools"]] == ["final_report"]


async def test_search_that_cites_its_sources_and_switch_bring_report_back() -> None:
    searching = await body(request(output_schema=CITY, tools=[tool("provider:web_search")]))
    assert [one["name"] for one in searching["tools"]] == ["web_search", "final_report"]
    assert "output_config" not in searching
    switched = await body(request(output_schema=CITY), native_schemas=False)
    assert [one["name"] for one in switched["tools"]] == ["final_report"]


THINKS_BY_DEFAULT = ("claude-sonnet-5", "claude-opus-5-5")


NEVER_FORCED = ("claude-opus-5-5",)


@pytest.mark.requirement("provider.schema.with_reasoning")
@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-4-7", "claude-sonnet-5", "claude-opus-5-5"])
@pytest.mark.parametrize("reasoning", [None, 0, 30, 100])
@pytest.mark.parametrize("choice", ["auto", "required", ("tool", "look")])
@pytest.mark.parametrize("tools", [(), (tool("look"),)], ids=["no tools", "tools"])
@pytest.mark.parametrize("schema", [None, CITY], ids=["text", "schema"])
async def test_a_tool_choice_is_forced_wherever_the_api_allows_it(
    model: str, reasoning: int | None, choice: Any, tools: Sequence[ToolSpec], schema: OutputSchema | None
) -> None:
    asked = request(model=model, reasoning=reasoning, tool_choice=choice, tools=tools, output_schema=schema)
    sent = await body(asked, native_schemas=False)
    kind = sent.get("thinking", {}).get("type", "default")
    thinks = kind in ("enabled", "adaptive") or (kind == "default" and model in THINKS_BY_DEFAULT)
    forced = sent.get("tool_choice", {}).get("type") in ("any", "tool")
    assert not (forced and (kind == "enabled" or model in NEVER_FORCED))
    if tools and choice != "auto":
        assert forced is (model not in NEVER_FORCED)
        assert kind != "enabled"
        assert thinks or not reasoning or model == "claude-sonnet-4-5"
    if schema and not tools:
        assert forced or thinks
        assert thinks or not reasoning


@pytest.mark.requirement("provider.schema.with_reasoning")
@pytest.mark.parametrize("model", ["claude-sonnet-4-0", "claude-opus-5-5"])
async def test_model_that_cannot_be_forced_answers_through_the_report(model: str) -> None:
    sent = await body(request(model=model, output_schema=CITY, reasoning=50, system="Be brief."), native_schemas=False)
    assert sent["thinking"]["type"] in ("enabled", "adaptive")
    assert sent["tool_choice"] == {"type": "auto"}
    assert "final_report" in sent["system"][-1]["text"]


async def test_report_of_a_non_object_schema_wraps_it() -> None:
    schema = OutputSchema("list", Raw(b'{"type":"array","items":{"$ref":"#/$defs/a"},"$defs":{"a":{"type":"string"}}}'))
    assert (await body(request(output_schema=schema)))["tools"][0]["input_schema"] == {
        "type": "object",
        "properties": {"output": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
        "required": ["output"],
        "$defs": {"a": {"type": "string"}},
    }
