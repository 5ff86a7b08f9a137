"""What one tenant sends does not stop the others: schemas and bodies that cost far more than their bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .kit import Api, Json, check_error, local_tool


def dag(levels: int) -> Json:
    """Definitions that each name the next one twice: in two kilobytes as many subschemas as anybody likes."""
    definitions: Json = {
        f"d{level}": {"anyOf": [{"allOf": [{"$ref": f"#/$defs/d{level + 1}"}]}, {"$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(levels)
    }
    definitions[f"d{levels}"] = {"type": "string"}
    return {"type": "object", "properties": {"q": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


def recursive_union() -> Json:
    """A union of two kinds of node, each of which has a node: the kinds to try double with each level of a value."""
    node = {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}, "leaf": False}}
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {"anyOf": [node, {**node, "title": "another"}]}},
    }


def chain(levels: int) -> Json:
    definitions: Json = {f"d{level}": {"not": {"$ref": f"#/$defs/d{level + 1}"}} for level in range(levels)}
    return {"type": "object", "properties": {}, "$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {}}}


BOMBS: dict[str, Json] = {
    "references": dag(40),
    "long chain": chain(500),
    "too large": {"type": "object", "properties": {}, "description": "x" * 70_000},
}


@pytest.mark.parametrize("schema", BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("door", ["agent-runs", "agent-sessions", "agents", "tools"])
async def test_schema_that_costs_too_much_is_refused_at_every_door(api: Api, door: str, schema: Json) -> None:
    spec: Json = {"tools": [local_tool(), local_tool("second", parameters=schema)]}
    field = "tools[1].parameters"
    body: Json = {"prompt": "hi", **spec}
    if door == "agent-sessions":
        body = spec
    elif door == "agents":
        body, field = {"name": "a", "spec": spec}, "spec: tools[1].parameters"
    elif door == "tools":
        body = {"kind": "http", "name": "t", "url": "http://x.example", "parameters": schema}
        field = "parameters"
    refused = check_error(await api.post(door, body), 400, "invalid_request")
    assert refused["message"].startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("outputSchema.schema", {"outputSchema": {"schema": dag(40)}}),
        ("tools[0].outputSchema", {"tools": [local_tool(outputSchema=dag(40))]}),
        (
            "tools[0].tools[0].inputSchema",
            {"tools": [{"kind": "mcp_local", "name": "s", "tools": [{"name": "t", "inputSchema": dag(40)}]}]},
        ),
    ],
)
async def test_every_place_of_a_schema_is_measured(api: Api, field: str, body: Json) -> None:
    refused = check_error(await api.post("agent-runs", {"prompt": "hi", **body}), 400, "invalid_request")
    assert refused["issues"][0]["path"] == field


async def test_definitions_that_are_used_often_are_fine(api: Api) -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}
    schema = {
        "type": "object",
        "properties": {"q": {"type": "string"}, **{f"p{n}": {"$ref": "#/$defs/point"} for n in range(200)}},
        "$defs": {"point": point},
    }
    run = await api.start("lookup", tools=[local_tool(parameters=schema)])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        assert (await api.answer(run, call["toolUseId"], result="x")).status == 200
        assert (await stream.until("result"))["text"] == "found x"


async def test_a_recursive_schema_is_enforced(api: Api) -> None:
    tree = {
        "type": "object",
        "properties": {"q": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#"}}},
    }
    frames = await api.play("lookup", tools=[local_tool(parameters=tree)])
    assert "tool_input_invalid" in frames[-1]["text"]


@pytest.mark.parametrize("script", ["deep_args", "deep_answer"])
async def test_value_that_is_slow_to_check_ends_only_its_run(api: Api, script: str) -> None:
    schema = recursive_union()
    where: dict[str, Any] = (
        {"tools": [local_tool(parameters=schema)]} if script == "deep_args" else {"outputSchema": {"schema": schema}}
    )
    run = await api.start(script, **where)
    following = asyncio.ensure_future(api.events(run))
    others = 0
    while not following.done():
        await asyncio.wait({following}, timeout=0.05)
        assert [frame.type for frame in await api.play("hello")][-1] == "result"
        others += 1
    last = following.result()[-1]
    told = last["text"] if script == "deep_args" else last["error"]
    assert "violates its schema" in told and others > 1


async def test_a_pattern_that_tries_everything_is_matched_in_linear_time(api: Api) -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string", "pattern": "^(a+)+$"}}}
    frames = await api.play("long_args", tools=[local_tool(parameters=schema)])
    assert "tool_input_invalid" in frames[-1]["text"] and "/q" in frames[-1]["text"]
    looking_back = {"type": "object", "properties": {"q": {"type": "string", "pattern": "^(?=(a+)+$)(a+)+$"}}}
    frames = await api.play("long_args", tools=[local_tool(parameters=looking_back)])
    assert "tool_input_invalid" in frames[-1]["text"]


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("messages", {"messages": [{"role": "user", "content": "x"}] * 10_001}),
        ("tools", {"prompt": "x", "tools": [local_tool(f"t{n}") for n in range(513)]}),
        (
            "tools",
            {
                "prompt": "x",
                "tools": [
                    {"kind": "mcp_local", "name": f"s{n}", "tools": [{"name": f"t{n}_{m}"} for m in range(64)]}
                    for n in range(9)
                ],
            },
        ),
        (
            "tools[0].toolFilter",
            {"prompt": "x", "tools": [{"kind": "mcp", "name": "m", "url": "http://x", "toolFilter": ["x"] * 513}]},
        ),
        (
            "tools[0].headers",
            {
                "prompt": "x",
                "tools": [
                    {"kind": "mcp", "name": "m", "url": "http://x", "headers": {f"x-{n}": "" for n in range(65)}}
                ],
            },
        ),
    ],
)
async def test_too_many_of_anything_is_refused_by_name(api: Api, field: str, body: Json) -> None:
    refused = check_error(await api.post("agent-runs", body), 400, "invalid_request")
    assert [issue["path"] for issue in refused["issues"]] == [field]


@pytest.mark.parametrize("door", ["agent-runs", "agent-sessions", "agents"])
async def test_body_of_millions_of_values_is_refused_before_parsing(api: Api, door: str) -> None:
    bomb = b'{"prompt":"x","other":[' + b"[]," * 1_000_000 + b"[]]}"
    refused = check_error(await api.post(door, data=bomb), 400, "invalid_request")
    assert "200,000 JSON values" in refused["message"]


LONG_NUMBERS = b"[" + b",".join([b"9" * 4_290] * 20) + b"]"


@pytest.mark.parametrize("door", ["agent-runs", "agent-sessions", "agents", "tools", "providers"])
async def test_body_of_very_long_numbers_is_refused_before_parsing(api: Api, door: str) -> None:
    bomb = b'{"prompt":"x","other":' + LONG_NUMBERS + b"}"
    refused = check_error(await api.post(door, data=bomb), 400, "invalid_request")
    assert refused["message"] == "The body has too many numbers of more than 400 digits."


@pytest.mark.parametrize("door", ["agent-runs", "agent-sessions", "agents", "tools", "providers"])
async def test_body_of_extreme_numbers_is_refused_before_parsing(api: Api, door: str) -> None:
    """A megabyte of them, 190,000 times `1e300`, stopped the event loop for five seconds."""
    bomb = b'{"prompt":"x","other":[' + b"1e300," * 40_000 + b"1]}"
    refused = check_error(await api.post(door, data=bomb), 400, "invalid_request")
    assert refused["message"] == "The body has more than 1,000 numbers with an exponent of three digits."


async def test_long_digits_in_text_and_few_long_numbers_are_fine(api: Api) -> None:
    digits = "9" * 100_000
    run = await api.start("hello", prompt=digits, other=10**1_000)
    assert (await api.snapshot(run))["spec"]["prompt"] == digits


async def test_arguments_of_very_long_numbers_end_their_run(api: Api) -> None:
    frames = await api.play("long_numbers", tools=[local_tool()])
    assert frames[-1].type == "error" and "numbers of more than 400 digits" in frames[-1]["error"]


async def test_arguments_of_numbers_at_edge_of_double_end_their_run(api: Api) -> None:
    frames = await api.play("edge_numbers", tools=[local_tool()])
    assert frames[-1].type == "error" and "numbers with an exponent of three digits" in frames[-1]["error"]


async def test_long_text_with_million_commas_is_just_text(api: Api) -> None:
    prompt = 'a, "b" [c] \\' * 400_000
    run = await api.start("hello", prompt=prompt)
    assert (await api.snapshot(run))["spec"]["prompt"] == prompt


async def test_the_largest_body_that_is_taken_is_a_run(api: Api) -> None:
    messages = [{"role": "user", "content": f"message {n}"} for n in range(10_000)]
    frames = await api.play("seen", messages=messages, prompt=None)
    assert frames[-1]["text"].endswith("/ 10000")


async def test_faults_are_listed_up_to_a_limit_and_then_counted(api: Api) -> None:
    refused = check_error(await api.post("agent-runs", {"messages": [{}] * 5_000}), 400, "invalid_request")
    assert len(refused["issues"]) == 100
    assert refused["message"].endswith("(and 9,997 more)")


async def test_bomb_in_call_to_hosted_agent_is_refused(api: Api) -> None:
    agent = (await api.post("agents", {"name": "helper", "spec": {"modelId": "scripted:hello"}})).json
    parts = (
        b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"parts":[' + b"{}," * 500_000 + b"{}]}}}"
    )
    reply = await api.post(f"/api/a2a/{api.slug}/agents/{agent['slug']}", data=parts)
    assert "JSON values" in reply.json["error"]["message"]
    reply = await api.post(
        f"/api/a2a/{api.slug}/agents/{agent['slug']}",
        data=b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":' + LONG_NUMBERS + b"}",
    )
    assert "numbers of more than 400 digits" in reply.json["error"]["message"]
    listing = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[' + b"{}," * 500_000 + b"{}]}"
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    check_error(await api.post(f"/api/mcp/{api.slug}", data=listing, headers=headers), 400, "invalid_request")


async def test_arguments_of_a_million_values_end_their_run(api: Api) -> None:
    frames = await api.play("many_args", tools=[local_tool()])
    assert frames[-1].type == "error" and "200,000 JSON values" in frames[-1]["error"]


async def test_a_tool_result_that_is_a_bomb_is_refused(api: Api) -> None:
    run = await api.start("lookup", tools=[local_tool()])
    bomb = b'{"toolUseId":[' + b"[]," * 2_000_000 + b"[]]}"
    refused = check_error(await api.post(f"agent-runs/{run}/tool-results", data=bomb), 400, "invalid_request")
    assert "200,000 JSON values" in refused["message"]
