"""Fields that the protocol does not know: found wherever a client describes something, named, and never many."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from weftline.api.validation import parsed_as
from weftline.cases.agents import AgentModel, draft_of
from weftline.cases.tools import ToolModel
from weftline.spec.door import parse_message, parse_run, parse_session
from weftline.spec.fields import RunModel
from weftline.wire.requests import parse_tool_result
from weftline.wire.unknown_fields import MAX_LISTED, nearest_field, shape_of_struct, unknown_fields


def told(**fields: Any) -> dict[str, str]:
    """What is said about each unknown field of a run: its path and the nearest known one."""
    found = parse_run(msgspec.json.encode({"prompt": "hi", **fields})).unknown
    return {field.path: field.nearest for field in found}


SLIPS: list[tuple[dict[str, Any], dict[str, str]]] = [
    (
        {"modelid": "x", "system_prompt": "y", "max_tokens": 3},
        {"modelid": "modelId", "system_prompt": "systemPrompt", "max_tokens": "maxOutputTokens"},
    ),
    ({"budgets": {"maxToolTruns": 3}}, {"budgets.maxToolTruns": "maxToolTurns"}),
    ({"maxToolTurns": 3}, {"maxToolTurns": "budgets.maxToolTurns"}),
    (
        {"tools": [{"kind": "local", "name": "a"}, {"kind": "local", "name": "b", "paramaters": {}}]},
        {"tools[1].paramaters": "parameters"},
    ),
    (
        {"tools": [{"kind": "mcp", "name": "a", "url": "https://m", "tool_filter": []}]},
        {"tools[0].tool_filter": "toolFilter"},
    ),
    ({"toolBudgets": {"look": {"maxCalls": 1, "max": 2}}}, {"toolBudgets.look.max": ""}),
    ({"loopDetection": {"soft": 3}}, {"loopDetection.soft": ""}),
    ({"outputSchema": {"schema": {}, "strict": True}}, {"outputSchema.strict": ""}),
    (
        {"attachments": [{"url": "https://x/a.png", "mime_type": "image/png"}]},
        {"attachments[0].mime_type": "mimeType"},
    ),
    ({"zzz": 1}, {"zzz": ""}),
    ({"a\nb": 1}, {"'a\\nb'": ""}),
]
"""What is sent, and the path of each unknown field with the nearest known one."""


@pytest.mark.parametrize(("sent", "expected"), SLIPS)
def test_each_unknown_field_is_named_with_the_nearest_known_one(sent: dict[str, Any], expected: dict[str, str]) -> None:
    assert told(**sent) == expected


def test_messages_are_looked_into_one_by_one() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "user", "content": "ho", "contents": "x"}]
    found = parse_run(msgspec.json.encode({"messages": messages})).unknown
    assert [(field.path, field.nearest) for field in found] == [("messages[1].contents", "content")]


NO_SLIPS: list[dict[str, Any]] = [
    {},
    {"modelid": None},
    {"metadata": {"anything": "x"}},
    {"loopDetection": False},
    {"tools": [{"kind": "local", "name": "a", "parameters": {"type": "object", "whatever": 1}}]},
    {"tools": [{"kind": "a2a_local", "name": "a", "agentCard": {"name": "A", "x-mine": 1}}]},
    {"tools": [{"kind": "mcp_local", "name": "a", "tools": [{"name": "b", "annotations": {}, "_meta": {}}]}]},
    {"tools": [{"kind": "mcp", "name": "a", "url": "https://m", "headers": {"x-any": "y"}}]},
]


@pytest.mark.parametrize("sent", NO_SLIPS)
def test_opaque_value_is_not_examined_and_null_is_absent(sent: dict[str, Any]) -> None:
    assert told(**sent) == {}


def test_request_with_many_unknown_fields_names_some() -> None:
    found = parse_run(msgspec.json.encode({"prompt": "hi", **{f"field{n}": n for n in range(5_000)}})).unknown
    assert len(found) == MAX_LISTED + 1
    assert found[-1].path == "…" and str(MAX_LISTED) in found[-1].message


def test_long_names_are_cut_and_compared_with_nothing() -> None:
    (field,) = unknown_fields({"modelId" * 1_000: 1}, shape_of_struct(RunModel))
    assert len(field.path) < 100 and field.nearest == ""
    assert nearest_field("modelId" * 1_000, shape_of_struct(RunModel)) == ""


def test_a_session_a_message_and_an_agent_say_so_too() -> None:
    session = parse_session(b'{"systemprompt":"x"}').unknown
    assert [(field.path, field.nearest) for field in session] == [("systemprompt", "systemPrompt")]
    message = parse_message(b'{"prompt":"x","modelId":"y","tols":[]}').unknown
    assert [(field.path, field.message) for field in message] == [
        ("modelId", "is set when the session is created and was ignored"),
        ("tols", "is not a known field and was ignored; did you mean tools?"),
    ]
    sent = b'{"name":"a","spec":{"modelid":"x"},"descripton":"y"}'
    fields, unknown = parsed_as(AgentModel, msgspec.json.decode(sent))
    assert [(field.path, field.nearest) for field in (*unknown, *draft_of(fields, sent)[1])] == [
        ("descripton", "description"),
        ("spec.modelid", "modelId"),
    ]
    tool = parsed_as(ToolModel, {"name": "t", "url": "https://x", "header": {}})[1]
    assert [(field.path, field.nearest) for field in tool] == [("header", "headers")]


def test_a_tool_result_is_taken_whatever_else_it_has() -> None:
    plain = parse_tool_result(b'{"toolUseId":"c","result":"r"}', user_agent="")
    more = parse_tool_result(b'{"toolUseId":"c","result":"r","outptu":{"a":[1]},"x":null}', user_agent="")
    assert plain.unknown == () and (more.result, more.tool_use_id) == ("r", "c")
    assert [field.path for field in more.unknown] == ["outptu"]


def test_model_facts_are_read_off_the_models() -> None:
    shape = shape_of_struct(RunModel)
    assert {"prompt", "messages", "modelId", "temperature", "attachments", "budgets"} <= shape.known
    assert {"tools", "messages", "budgets", "toolBudgets", "outputSchema", "loopDetection"} <= shape.inside.keys()


ARRAY: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
OBJECT: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}


def test_a_schema_that_is_not_used_is_named() -> None:
    tools: list[dict[str, Any]] = [
        {"kind": "local", "name": "a", "parameters": ARRAY, "outputSchema": ARRAY},
        {"kind": "local", "name": "b", "parameters": OBJECT, "outputSchema": OBJECT},
        {"kind": "local", "name": "c", "parameters": {}, "outputSchema": {}},
        {"kind": "local", "name": "d", "parameters": {"type": "object"}},
        {"kind": "local", "name": "e", "parameters": {"properties": {"n": {}}}, "outputSchema": None},
        {"kind": "mcp_local", "name": "m", "tools": [{"name": "x", "inputSchema": OBJECT}]},
        {"kind": "mcp_local", "name": "n", "tools": [{"name": "y"}, {"name": "z", "inputSchema": {"type": "string"}}]},
    ]
    body = msgspec.json.encode({"prompt": "hi", "tools": tools})
    for found in (parse_run(body).unknown, parse_message(body).unknown):
        assert [(field.code, field.path) for field in found] == [
            ("unused_schema", "tools[0].parameters"),
            ("unused_schema", "tools[0].outputSchema"),
            ("unused_schema", "tools[4].parameters"),
            ("unused_schema", "tools[6].tools[1].inputSchema"),
        ]
        assert found[0].message == "is not the schema of an object with `properties` and was ignored"
        assert found[1].message == "is not the schema of an object and was ignored"
        assert found[1].refusal == "is not the schema of an object"
