"""Strict mode: what fits it, what is made to fit, and what comes back as it was meant."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from openai_stand_in import answer, answering, ask, chunks_of, events, sent_by, spec
from pydantic import BaseModel, Field

from weftline.messages import OutputSchema
from weftline.providers.anthropic.schema import native_schema
from weftline.providers.base import Chunk, ProviderError, TextDelta
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.openai.family import OpenAIFamily
from weftline.providers.openai.responses import OpenAIResponses
from weftline.providers.openai.strict import strict_form, without_nulls
from weftline.testing.recordings import RecordedTransport

STRING: dict[str, Any] = {"type": "string"}


def closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


FITS: list[dict[str, Any]] = [
    closed(a=STRING),
    closed(),
    closed(a={"type": ["string", "null"], "description": "x"}),
    closed(a={"type": "array", "items": closed(b={"enum": ["x", "y"], "type": "string"}), "minItems": 2}),
    closed(a={"anyOf": [STRING, {"type": "null"}]}),
    {**closed(next={"$ref": "#/$defs/n"}), "$defs": {"n": closed(next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})}},
    closed(at={"type": "string", "format": "date-time"}),
]


@pytest.mark.parametrize("schema", FITS, ids=json.dumps)
def test_a_schema_that_fits_is_sent_as_it_is(schema: dict[str, Any]) -> None:
    form = strict_form(schema)
    assert form is not None
    assert form.schema is schema
    assert not form.nulls


MENDED: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"type": "object", "properties": {"a": STRING}}, closed(a={"type": ["string", "null"]}), True),
    ({"type": "object", "properties": {"a": STRING}, "required": ["a"]}, closed(a=STRING), False),
    (
        closed([], a={"enum": ["x"], "description": "Which."}),
        closed(a={"description": "Which.", "anyOf": [{"enum": ["x"], "type": "string"}, {"type": "null"}]}),
        True,
    ),
    (
        closed([], a={"type": "integer", "default": 10, "description": "How many."}),
        closed(a={"type": ["integer", "null"], "description": "How many. Default: 10"}),
        True,
    ),
    (closed([], a={"type": ["string", "null"]}), closed(a={"type": ["string", "null"]}), False),
    (closed(a={"const": 3}), closed(a={"const": 3, "type": "integer"}), False),
    (
        {**closed(a={"$ref": "#/$defs/b", "description": "It."}), "$defs": {"b": STRING}},
        {**closed(a={"description": "It.", "anyOf": [{"$ref": "#/$defs/b"}]}), "$defs": {"b": STRING}},
        False,
    ),
    (
        {"$ref": "#/$defs/n", "$defs": {"n": closed([], next={"$ref": "#/$defs/n"})}},
        {
            **closed(next={"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}),
            "$defs": {"n": closed(next={"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]})},
        },
        True,
    ),
    (closed(a={"oneOf": [STRING, {"type": "null"}]}), closed(a={"anyOf": [STRING, {"type": "null"}]}), False),
    (
        closed(a={"oneOf": [{"const": "x", "title": "X"}, {"const": "y"}]}),
        closed(a={"anyOf": [{"const": "x", "title": "X", "type": "string"}, {"const": "y", "type": "string"}]}),
        False,
    ),
]


@pytest.mark.parametrize(("schema", "mended", "nulls"), MENDED, ids=lambda one: json.dumps(one)[:60])
def test_a_schema_is_mended_where_that_changes_nothing(
    schema: dict[str, Any], mended: dict[str, Any], nulls: bool
) -> None:
    before = json.dumps(schema)
    assert strict_form(schema) == (mended, nulls)
    assert json.dumps(schema) == before


LEFT: list[dict[str, Any]] = [
    {"type": "object"},
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"a": STRING}, "additionalProperties": True},
    {"type": "object", "properties": {"a": {"type": "object", "additionalProperties": STRING}}},
    {"type": "array", "items": STRING},
    {"anyOf": [closed(a=STRING), closed(b=STRING)]},
    closed(a={}),
    closed(a={"type": "string", "maxLength": 3}),
    closed(a={"type": "string", "format": "uri"}),
    closed(a={"type": "array"}),
    closed(a={"type": "array", "prefixItems": [STRING]}),
    closed(a={"oneOf": [STRING, {"type": "string", "pattern": "x"}]}),
    closed(a={"allOf": [STRING, {"minLength": 1}]}),
    closed(a={"anyOf": [closed([], b=STRING), closed([], c=STRING)]}),
    closed(a={"$ref": "https://example.org/schema"}),
    closed(a={"$ref": "#/$defs/missing"}),
    closed(["b"], a=STRING),
    closed(a={"not": STRING}),
    {**closed(a=STRING), "x-mine": 1},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"type": "object", "properties": [1], "required": "a"},
]


@pytest.mark.parametrize("schema", LEFT, ids=lambda one: json.dumps(one)[:60])
def test_a_schema_that_would_mean_something_else_is_left_alone(schema: dict[str, Any]) -> None:
    assert strict_form(schema) is None


def test_too_deep_and_too_large_schemas_are_left_alone() -> None:
    deep = STRING
    for _ in range(12):
        deep = closed(a=deep)
    assert strict_form(deep) is None
    assert strict_form({**closed(), "properties": {f"p{number}": STRING for number in range(5_001)}}) is None
    assert strict_form(closed(a={"type": "integer", "enum": list(range(1_001))})) is None


ITEM = {"type": "object", "properties": {"name": STRING, "note": STRING}, "required": ["name"]}
BY_KIND = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
            "required": ["kind"],
        },
        {"type": "object", "properties": {"kind": {"const": "dog"}, "lives": {"type": "null"}}, "required": ["kind"]},
    ]
}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (ITEM, '{"name":"x","note":null}', '{"name":"x"}'),
        (ITEM, '{"name": "x", "note": "null"}', '{"name": "x", "note": "null"}'),
        (closed(a={"type": "array", "items": ITEM}), '{"a":[{"name":"x","note":null}]}', '{"a":[{"name":"x"}]}'),
        (closed([], a={"type": ["string", "null"]}), '{"a":null}', '{"a":null}'),
        (closed(pet=BY_KIND), '{"pet":{"kind":"cat","lives":null}}', '{"pet":{"kind":"cat"}}'),
        (closed(pet=BY_KIND), '{"pet":{"kind":"dog","lives":null}}', '{"pet":{"kind":"dog","lives":null}}'),
        (closed([], n={"type": "number"}, m=STRING), '{"n":1.50e0,"m":null}', '{"n":1.50e0}'),
        (closed([], n={"type": "integer"}, m=STRING), f'{{"n":{10**30},"m":null}}', f'{{"n":{10**30}}}'),
        (ITEM, '{"name":"x","note":nul', '{"name":"x","note":nul'),
        (ITEM, '{"unknown":null}', '{"unknown":null}'),
        (ITEM, "[null]", "[null]"),
    ],
)  # fmt: skip
def test_only_nulls_that_stand_for_field_left_out_are_dropped(schema: dict[str, Any], text: str, expected: str) -> None:
    assert without_nulls(text, schema) == expected


Schema = dict[str, Any]


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(properties: dict[str, Schema], required: set[str]) -> Schema:
    needed = [name for name in properties if name in required]
    return {"type": "object", "properties": properties, "required": needed}


def _containers(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    names = st.sampled_from("abcd")
    return inner.map(_array) | st.builds(_object, st.dictionaries(names, inner, min_size=1), st.sets(names))


LEAVES: list[Schema] = [STRING, {"type": "integer"}, {"type": ["boolean", "null"]}, {"enum": ["x", None]}]
schemas: st.SearchStrategy[Schema] = st.recursive(st.sampled_from(LEAVES), _containers, max_leaves=8)


@given(st.dictionaries(st.sampled_from("abcd"), schemas, min_size=1), st.data())
def test_whatever_strict_mode_admits_is_what_schema_admits_once_restored(
    properties: dict[str, Any], data: st.DataObject
) -> None:
    required = data.draw(st.sets(st.sampled_from(sorted(properties))))
    schema = {"type": "object", "properties": properties, "required": sorted(required)}
    form = strict_form(schema)
    assert form is not None
    value = data.draw(_of(form.schema))
    assert jsonschema_rs.is_valid(form.schema, value)
    text = without_nulls(json.dumps(value), schema)
    assert jsonschema_rs.is_valid(schema, json.loads(text))


def _of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a schema in strict mode's form."""
    if "anyOf" in schema:
        return st.one_of([_of(one) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds: list[str] = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    plain: dict[str, st.SearchStrategy[Any]] = {
        "string": st.sampled_from(["", "null", "x"]),
        "integer": st.integers(-2, 2),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return st.one_of([plain[kind] if kind in plain else _container(kind, schema) for kind in kinds])


def _container(kind: str, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if kind == "array":
        return st.lists(_of(schema["items"]), max_size=2)
    return st.fixed_dictionaries({name: _of(one) for name, one in schema["properties"].items()})


WORDS = [
    "type",
    "properties",
    "required",
    "items",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "$defs",
    "enum",
    "const",
    "format",
    "object",
    "array",
    "string",
    "null",
    "#",
    "#/$defs/a",
    "a",
    "additionalProperties",
    "default",
    "minItems",
]
words = st.sampled_from(WORDS)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(words, anything), anything)
def test_no_schema_however_odd_is_too_much(schema: dict[str, Any], value: Any) -> None:
    odd = {"type": "object", **schema}
    text = json.dumps(value)
    without_nulls(text, odd)
    for one in (odd, {"type": "object", "properties": {"a": odd}}):
        form = strict_form(one)
        assert form is None or jsonschema_rs.meta.is_valid(form.schema)
        native_schema(json.dumps(one).encode())


class Port(BaseModel):
    name: str
    depth_m: float | None = None
    pilots: list[str] = Field(default_factory=list[str])


def output(schema: dict[str, Any]) -> OutputSchema:
    return OutputSchema("port", Raw(json.dumps(schema).encode()))


def said(family: str, *pieces: str) -> bytes:
    if family == "chat":
        ended: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        return events(*({"choices": [{"index": 0, "delta": {"content": one}}]} for one in pieces), ended, b"[DONE]")
    deltas = [{"type": "response.output_text.delta", "output_index": 0, "delta": one} for one in pieces]
    return events(*deltas, {"type": "response.completed", "response": {"status": "completed", "output": []}})


def called(family: str, name: str, args: str) -> bytes:
    if family == "chat":
        call = {"index": 0, "id": "c1", "function": {"name": name, "arguments": args}}
        ended: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
        return events({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}, ended, b"[DONE]")
    item = {"type": "function_call", "call_id": "c1", "name": name, "arguments": args}
    return events({"type": "response.completed", "response": {"status": "completed", "output": [item]}})


def provider(family: str, transport: RecordedTransport) -> OpenAIFamily:
    made = OpenAIChat if family == "chat" else OpenAIResponses
    return made(transport=transport, base_url="http://stand-in/v1", api_key="k")


async def sent(family: str, **asked: Any) -> Any:
    body = await sent_by(lambda transport: provider(family, transport), said(family, "{}"), ask(**asked))
    if family == "chat":
        tools = [tool["function"] for tool in body.get("tools", [])]
        return body.get("response_format", {}).get("json_schema"), tools
    return body.get("text", {}).get("format"), body.get("tools", [])


@pytest.fixture(params=["responses", "chat"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.requirement("provider.schema.openai")
async def test_an_answers_schema_is_strict_only_where_it_fits(family: str) -> None:
    as_written = closed(name=STRING)
    form, _ = await sent(family, output_schema=output(as_written))
    assert (form["schema"], form["strict"]) == (as_written, True)
    form, _ = await sent(family, output_schema=output(Port.model_json_schema()))
    assert form["strict"]
    assert form["schema"]["required"] == ["name", "depth_m", "pilots"]
    assert form["schema"]["additionalProperties"] is False
    free = {"type": "object", "additionalProperties": {"type": "integer"}}
    form, _ = await sent(family, output_schema=output(free))
    assert (form["schema"], form["strict"]) == (free, False)


async def test_a_tools_parameters_are_strict_only_where_they_fit(family: str) -> None:
    optional = {"type": "object", "properties": {"a": STRING, "b": STRING}, "required": ["a"]}
    free = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}
    _, (mended, left) = await sent(family, tools=[spec("one", json.dumps(optional)), spec("two", json.dumps(free))])
    assert mended["strict"]
    assert mended["parameters"] == closed(a=STRING, b={"type": ["string", "null"]})
    assert not left.get("strict")
    assert left["parameters"] == free


async def test_fields_that_were_left_out_are_not_in_the_answer(family: str) -> None:
    text = '{"name":"Vardø","depth_m":null,"pilots":null}'
    stream = said(family, text[:12], text[12:30], text[30:])
    asked = ask(output_schema=output(Port.model_json_schema()))
    got = await answer(provider(family, answering(stream)), asked)
    assert json.loads(got.text) == {"name": "Vardø", "depth_m": None}
    assert Port.model_validate_json(got.text) == Port(name="Vardø")


async def test_arguments_that_were_left_out_are_not_in_the_call(family: str) -> None:
    tool = spec("find", json.dumps({"type": "object", "properties": {"q": STRING, "limit": {"type": "integer"}}}))
    got = await answer(provider(family, answering(called(family, "find", '{"q":"x","limit":null}'))), ask(tools=[tool]))
    assert [call.args for call in got.message().calls] == ['{"q":"x"}']


async def test_arguments_of_a_tool_without_strict_mode_keep_their_nulls(family: str) -> None:
    tool = spec("find", json.dumps({"type": "object", "properties": {"q": {}}}))
    got = await answer(provider(family, answering(called(family, "find", '{"q":null}'))), ask(tools=[tool]))
    assert [call.args for call in got.message().calls] == ['{"q":null}']


@pytest.mark.parametrize(
    ("schema", "wrapped", "text"),
    [
        ({"type": "array", "items": STRING}, '{"output":["a","b"]}', '["a","b"]'),
        ({"anyOf": [closed(a=STRING), closed(b=STRING)]}, '{"output": {"b":"x"}}', '{"b":"x"}'),
        ({"type": "array", "items": STRING}, '["not wrapped"]', '["not wrapped"]'),
    ],
)
async def test_non_object_schema_is_wrapped_and_its_answer_unwrapped(
    family: str, schema: dict[str, Any], wrapped: str, text: str
) -> None:
    asked = ask(output_schema=output(schema))
    assert (await answer(provider(family, answering(said(family, wrapped))), asked)).text == text
    form, _ = await sent(family, output_schema=output(schema))
    assert form["schema"]["type"] == "object"
    assert form["schema"]["properties"]["output"] == schema


async def test_text_is_held_back_only_for_rewriting(family: str) -> None:
    pieces = ('{"name"', ':"x"}')
    for schema, expected in ((closed(name=STRING), list(pieces)), (Port.model_json_schema(), ["".join(pieces)])):
        chunks = await chunks_of(provider(family, answering(said(family, *pieces))), ask(output_schema=output(schema)))
        assert [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)] == expected


@pytest.mark.requirement("provider.schema.truncated")
async def test_held_text_is_released_when_the_answer_breaks(family: str) -> None:
    begun = b"".join(said(family, '{"name":"x","depth_m":null').split(b"\n\n")[0:1]) + b"\n\n"
    chunks: list[Chunk] = []

    async def gather() -> None:
        asked = ask(output_schema=output(Port.model_json_schema()))
        async for several in provider(family, answering(begun)).stream(asked):
            chunks.extend(several)

    with pytest.raises(ProviderError):
        await gather()
    assert chunks == [TextDelta('{"name":"x","depth_m":null')]


@pytest.mark.parametrize("profile", ["vllm", "openrouter"])
async def test_servers_without_strict_tools_get_them_as_written(profile: str) -> None:
    tool = spec("find", '{"type":"object","properties":{"q":{"type":"string"}}}')
    body = await sent_by(
        lambda transport: OpenAIChat(profile=profile, transport=transport, base_url="http://stand-in/v1", api_key="k"),
        said("chat", "hi"),
        ask(tools=[tool]),
    )
    function = body["tools"][0]["function"]
    assert "strict" not in function
    assert function["parameters"] == {"type": "object", "properties": {"q": STRING}}
