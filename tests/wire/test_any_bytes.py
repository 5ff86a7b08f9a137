"""No bytes whatever make a parser fail in any way but the one that clients are told about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.errors import InvalidRequest
from weftline.plan import decode_plan, encode_plan
from weftline.spec.door import parse_message, parse_run, parse_session
from weftline.spec.merge import with_session
from weftline.spec.plan import plan_from_spec
from weftline.wire.errors import error_body
from weftline.wire.requests import parse_tool_result


def tool_result(body: bytes) -> object:
    return parse_tool_result(body, user_agent="test")


PARSERS: list[Callable[[bytes], object]] = [parse_run, parse_session, parse_message, tool_result]

DEEP_LIST = b"[" * 100_000
DEEP = b'{"prompt":"x","x":' + b"[" * 400 + b"]" * 400 + b"}"
DEEP_CARD = (
    b'{"prompt":"x","tools":[{"kind":"a2a_local","name":"a","agentCard":{"name":"n","x":'
    + b'{"x":' * 300
    + b"1"
    + b"}" * 300
    + b"}}]}"
)

MALFORMED = {
    "empty": b"",
    "blank": b"   ",
    "cut": b'{"prompt":"x"',
    "trailing": b'{"prompt":"x"} x',
    "bare word": b"prompt",
    "NaN": b'{"prompt":"x","reasoningLevel":NaN}',
    "Infinity": b'{"prompt":"x","x":-Infinity}',
    "lone surrogate": b'{"prompt":"\\ud800"}',
    "lone low surrogate": b'{"prompt":"\\udc00 x"}',
    "half a pair": b'{"prompt":"\\ud83dxx"}',
    "control character": b'{"prompt":"a\nb"}',
    "not UTF-8": b'{"prompt":"\xff"}',
    "a surrogate in UTF-8": b'{"prompt":"\xed\xa0\x80"}',
    "byte order mark": b'\xef\xbb\xbf{"prompt":"x"}',
    "UTF-16": '{"prompt":"x"}'.encode("utf-16"),
}
NOT_OBJECTS = {"null": b"null", "array": b"[]", "string": b'"x"', "number": b"5", "true": b"true"}
UNUSABLE = {
    "deep list": DEEP_LIST,
    "deep": DEEP,
    "deep card": DEEP_CARD,
    "deep objects": b'{"prompt":' * 100_000,
    "a number out of range": b'{"prompt":"x","x":1e999}',
    "a number of 6000 digits": b'{"prompt":"x","x":' + b"1" * 6000 + b"}",
    "not UTF-8 in an unknown field": b'{"prompt":"x","x":{"y":"\xff"}}',
    "not UTF-8 in a key": b'{"prompt":"x","\xff":1}',
}


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("raw", [*MALFORMED.values(), *NOT_OBJECTS.values()], ids=[*MALFORMED, *NOT_OBJECTS])
def test_non_object_json_is_refused(parse: Callable[[bytes], object], raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(raw)
    assert caught.value.status == 400
    assert caught.value.message


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"prompt":"\uD83d"}',
        rb'{"prompt":"x","metadata":{"a":"\udc00 \ud83d\ude00"}}',
        rb'{"prompt":"x","\ud83dx":1}',
    ],
    ids=["prompt", "metadata", "key"],
)
def test_half_a_character_in_a_request_is_refused_by_name(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"contains \\u[dD]\w{3}, an unpaired surrogate"):
        parse_run(raw)


@pytest.mark.parametrize("parse", [parse_run, parse_message])
@pytest.mark.parametrize("raw", UNUSABLE.values(), ids=UNUSABLE)
def test_unreadable_output_type_is_refused(parse: Callable[[bytes], object], raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse(raw)


def test_nesting_within_limit_is_accepted_however_many_brackets_there_are() -> None:
    nested = b"[" * 150 + b"]" * 150
    spec = parse_run(b'{"prompt":"x","x":' + nested + b',"y":[' + b",".join([b"[]"] * 500) + b"]}").spec
    assert nested in spec
    assert parse_run(b'{"prompt":"' + b"[" * 5000 + b'"}').spec


def test_big_integers_pass_through() -> None:
    assert b"123456789012345678901234567890" in parse_run(b'{"prompt":"x","x":123456789012345678901234567890}').spec


Json = dict[str, Any]

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
kinds = st.sampled_from(["mantyx", "mantyx_plugin", "local", "a2a", "a2a_local", "mcp", "mcp_local", "other"])
names = st.sampled_from(["a", "b", "c", "get-x", ""])
tools = st.fixed_dictionaries(
    {"kind": kinds | json_values},
    optional={
        "name": names | json_values,
        "id": names | json_values,
        "url": st.just("https://a") | json_values,
        "agentCardUrl": st.just("https://a") | json_values,
        "agentCard": st.just({"name": "n"}) | json_values,
        "headers": st.dictionaries(names, names) | json_values,
        "tools": st.lists(st.fixed_dictionaries({"name": names}) | json_values, max_size=3) | json_values,
        "parameters": json_values,
        "outputSchema": json_values,
        "serverInfo": json_values,
        "toolFilter": json_values,
        "description": json_values,
        "longRunning": json_values,
    },
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.text() | json_values,
        "messages": st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.text()})) | json_values,
        "tools": st.lists(tools | json_values, max_size=3) | json_values,
        "name": json_values,
        "agentId": names | json_values,
        "modelId": json_values,
        "systemPrompt": json_values,
        "reasoningLevel": st.integers(-5, 105) | st.floats(-1, 101) | json_values,
        "outputSchema": st.fixed_dictionaries({"schema": json_values}) | json_values,
        "loopDetection": st.fixed_dictionaries(
            {}, optional={"consecutiveThreshold": st.integers(0, 9), "hardCutoffThreshold": st.integers(0, 9)}
        )
        | json_values,
        "toolBudgets": st.dictionaries(names, st.fixed_dictionaries({"maxCalls": st.integers(-1, 1001)})) | json_values,
        "budgets": st.fixed_dictionaries({}, optional={"maxToolTurns": st.integers(-1)}) | json_values,
        "metadata": st.dictionaries(names, st.text(max_size=300)) | json_values,
        "toolUseId": json_values,
        "result": json_values,
        "error": json_values,
        "unknown": json_values,
    },
)


def tool_name(tool: Json) -> str:
    return "mcp_local" if tool["kind"] == "mcp_local" else tool["name"]


def record(fields: dict[str, Any], **optional: Any) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(fields, optional=optional)


good_tools: st.SearchStrategy[Json] = st.one_of(
    record(
        {"kind": st.just("local"), "name": st.sampled_from(["a", "b"])},
        parameters=json_values,
        outputSchema=json_values,
        x=json_values,
    ),
    record(
        {"kind": st.just("a2a_local"), "name": st.just("c"), "agentCard": record({"name": st.just("n")}, x=json_values)}
    ),
    record(
        {"kind": st.just("mcp"), "name": st.just("d"), "url": st.just("https://d")},
        headers=st.none() | st.dictionaries(st.sampled_from(["K", "L"]), st.sampled_from(["s3cret", ""])),
    ),
    record(
        {"kind": st.just("mcp_local"), "name": st.text(min_size=1), "tools": st.just([{"name": "e", "x": 1.5}])},
        serverInfo=st.none() | st.dictionaries(st.text(), json_values),
    ),
)
tool_lists = st.lists(good_tools, max_size=4, unique_by=tool_name)
good_bodies = record(
    {"prompt": st.text(), "tools": st.none() | tool_lists},
    messages=st.none(),
    name=st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=256),
    agentId=st.none() | st.just("agt_1"),
    modelId=st.none() | st.text(min_size=1, max_size=256),
    systemPrompt=st.none() | st.text(),
    reasoningLevel=st.none() | st.integers(0, 100) | st.integers(0, 100).map(float) | st.just("minimal"),
    outputSchema=st.none() | record({"schema": st.dictionaries(st.text(), json_values)}),
    loopDetection=st.none()
    | st.just(False)
    | record({"consecutiveThreshold": st.none() | st.integers(2, 100)})
    | record({"hardCutoffThreshold": st.none() | st.integers(3, 100)}),
    toolBudgets=st.none()
    | st.dictionaries(st.text(min_size=1, max_size=120), record({"maxCalls": st.integers(0, 1000)}), max_size=3),
    budgets=st.none() | record({}, maxToolTurns=st.integers(0), localToolTimeoutMs=st.integers(1, 604_800_000)),
    metadata=st.none() | st.dictionaries(st.sampled_from(["a", "b.c"]), st.sampled_from(["", "é"])),
    unknown=json_values,
)


def refusal(parse: Callable[[bytes], object], raw: bytes) -> InvalidRequest | None:
    try:
        parse(raw)
    except InvalidRequest as error:
        return error
    return None


@given(st.binary() | bodies.map(msgspec.json.encode))
def test_no_bytes_raise_anything_but_invalid_request(raw: bytes) -> None:
    for parse in PARSERS:
        error = refusal(parse, raw)
        assert error is None or msgspec.json.decode(error_body(error, "req_1"))["message"]


@given(good_bodies)
def test_a_good_body_is_stored_as_sent_and_read_back(sent: Json) -> None:
    raw = msgspec.json.encode(sent)
    run = parse_run(raw)
    plan = plan_from_spec(run.spec)
    assert (plan.name, plan.agent_id, plan.metadata) == (run.name, run.agent_id, run.metadata)
    assert decode_plan(encode_plan(plan), plan.limits) == plan
    assert len(plan.tools) == len(sent.get("tools") or ())
    assert plan.limits.loop_soft < plan.limits.loop_hard
    if not any("headers" in tool for tool in sent.get("tools") or ()):
        assert run.spec == raw
    message = parse_message(raw)
    assert plan_from_spec(with_session(b"{}", message.spec)).messages == plan.messages


@given(tool_lists)
def test_no_header_value_is_stored(tools: list[Json]) -> None:
    run = parse_run(msgspec.json.encode({"prompt": "", "tools": tools}))
    assert b"s3cret" not in run.spec
    assert run.secrets == {tool["name"]: tool["headers"] for tool in tools if tool.get("headers")}


@given(json_values)
def test_whatever_a_card_holds_keeps_its_bytes(value: Any) -> None:
    card = msgspec.json.encode({"name": "n", "x": value})
    raw = b'{"prompt":"x","tools":[{"kind":"a2a_local","name":"a","agentCard":' + card + b"}]}"
    assert parse_run(raw).spec == raw
