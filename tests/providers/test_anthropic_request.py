"""Requests to the Messages API, as its stand-in receives them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from anthropic_requests import body, request, send, tool
from msgspec import Raw

from traffic import exchange, recorded
from weftline.messages import (
    Assistant,
    File,
    Image,
    Message,
    Opaque,
    ProviderCall,
    System,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResults,
    User,
)
from weftline.net.errors import TimeLimits
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.assemble import collect
from weftline.providers.base import ModelRequest, ProviderError
from weftline.testing.recordings import RecordedTransport, SentRequest

MARK = {"type": "ephemeral"}
PIXEL = base64.b64encode(b"pixel").decode()


def unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [unmarked(item) for item in value]  # pyright: ignore[reportUnknownVariableType] JSON of any shape
    if isinstance(value, dict):
        return {name: unmarked(item) for name, item in value.items() if name != "cache_control"}  # pyright: ignore[reportUnknownVariableType] JSON of any shape
    return value


def marks(value: Any) -> int:
    return json.dumps(value).count('"cache_control"')


@pytest.mark.requirement("provider.request.parameters")
async def test_parameters_appear_in_native_form() -> None:
    sent = await body(
        request(
            tools=[tool("look")],
            tool_choice=("tool", "look"),
            parallel_tool_calls=False,
            max_output_tokens=99,
            temperature=0.5,
            top_p=0.9,
            top_k=3,
            stop=["END"],
        )
    )
    assert sent["tool_choice"] == {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    assert (sent["max_tokens"], sent["temperature"], sent["top_p"], sent["top_k"]) == (99, 0.5, 0.9, 3)
    assert (sent["stop_sequences"], sent["stream"]) == (["END"], True)
    bare = await body(request())
    assert set(bare) == {"model", "max_tokens", "stream", "messages"}


@pytest.mark.requirement("provider.request.parameters")
@pytest.mark.parametrize(("choice", "native"), [("auto", "auto"), ("required", "any"), ("none", "none")])
async def test_a_tool_choice_has_its_native_word(choice: Any, native: str) -> None:
    assert (await body(request(tools=[tool("look")], tool_choice=choice)))["tool_choice"] == {"type": native}


async def test_a_forced_final_turn_forbids_the_tools_without_changing_them() -> None:
    free = await body(request(tools=[tool("look")]))
    final = await body(request(tools=[tool("look")], tools_disabled=True))
    assert final["tool_choice"] == {"type": "none"}
    assert final["tools"] == free["tools"]


async def test_models_without_sampling_get_no_sampling_parameters() -> None:
    sent = await body(request(model="claude-opus-5", temperature=0.5, top_p=0.9, top_k=3, reasoning=50))
    assert not {"temperature", "top_p", "top_k"} & set(sent)


async def test_address_version_and_key_are_sent_with_default_model() -> None:
    sent = await send(request(model=""), limits=TimeLimits(total_s=7.0))
    assert sent.url == "https://api.anthropic.com/v1/messages"
    assert sent.headers == {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": "sk-secret",
    }
    assert sent.limits.total_s == 7.0
    assert json.loads(sent.body)["model"] == Anthropic.default_model
    for base_url in ("http://proxy", "http://proxy/", "http://proxy/v1", "http://proxy/v1/messages"):
        assert (await send(request(), base_url=base_url)).url == "http://proxy/v1/messages"


CONVERSATION: Sequence[Message] = (
    System("Be brief."),
    User.of("Where am I?"),
    Assistant((Text("Let me see."), ToolCall("a", "where", '{"x": 1}'), ToolCall("b", "when", "{}"))),
    ToolResults((ToolResult("a", "where", (Text("Mexico"),)),)),
    ToolResults((ToolResult("b", "when", (Text("never"),), is_error=True),)),
    User.of("Go on", injected=True),
    Assistant((Text("In Mexico."),)),
    System("Answer in French."),
    User.of("And now?"),
)


@pytest.mark.requirement("provider.request.conversation")
async def test_conversation_alternates_and_all_results_of_turn_are_together() -> None:
    sent = await body(request(*CONVERSATION, system="You are a guide."), cache=False)
    assert [block["text"] for block in sent["system"]] == ["You are a guide.", "Be brief."]
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant"] * 2 + ["user"]
    called, results, last = (
        sent["messages"][1]["content"],
        sent["messages"][2]["content"],
        sent["messages"][4]["content"],
    )
    assert called[1:] == [
        {"type": "tool_use", "id": "a", "name": "where", "input": {"x": 1}},
        {"type": "tool_use", "id": "b", "name": "when", "input": {}},
    ]
    assert results == [
        {"type": "tool_result", "tool_use_id": "a", "content": "Mexico", "is_error": False},
        {"type": "tool_result", "tool_use_id": "b", "content": "never", "is_error": True},
        {"type": "text", "text": "Go on"},
    ]
    assert "Answer in French." in last[0]["text"]
    assert last[1] == {"type": "text", "text": "And now?"}


@pytest.mark.parametrize(
    "file", ["streams/anthropic/two_tools_in_turn", *recorded(["anthropic/anthropic_mixed_strict_tool_run"])]
)
async def test_a_conversation_is_sent_as_the_api_wants_it(file: str) -> None:
    wanted = json.loads(exchange(file, 2).request_body)["messages"]
    results = [message["content"][0]["content"] for message in wanted[2::2]]
    said, first = wanted[1]["content"]
    (second,) = wanted[3]["content"]
    sent = await body(
        request(
            User.of(wanted[0]["content"][0]["text"]),
            Assistant((Text(said["text"]), ToolCall(first["id"], first["name"], "{}", "anthropic"))),
            ToolResults((ToolResult(first["id"], first["name"], (Text(results[0]),)),)),
            Assistant((ToolCall(second["id"], second["name"], json.dumps(second["input"]), "anthropic"),)),
            ToolResults((ToolResult(second["id"], second["name"], (Text(results[1]),)),)),
        ),
        cache=False,
    )
    assert sent["messages"] == wanted


@pytest.mark.requirement("provider.request.conversation")
async def test_call_that_was_left_open_gets_result_that_says_so() -> None:
    calls = Assistant((ToolCall("a", "x"), ToolCall("b", "x")))
    some = ToolResults((ToolResult("a", "x", (Text("1"),)),))
    sent = await body(
        request(User.of("hi"), calls, some, User.of("again"), calls, Assistant((Text("so"),))), cache=False
    )
    first, second = sent["messages"][2]["content"], sent["messages"][4]["content"]
    assert [block.get("tool_use_id") for block in first] == ["a", "b", None]
    assert first[1]["is_error"]
    assert [block["tool_use_id"] for block in second] == ["a", "b"]
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant"] * 3


async def test_malformed_arguments_and_foreign_ids_are_made_acceptable() -> None:
    calls = Assistant((ToolCall("call:1|x", "t", '{"a": '), ToolCall("c" * 80, "t", "[1]")))
    results = ToolResults((ToolResult("call:1|x", "t", (Text("no"),)), ToolResult("c" * 80, "t", (Text("no"),))))
    sent = await body(request(User.of("hi"), calls, results), cache=False)
    used, answered = sent["messages"][1]["content"], sent["messages"][2]["content"]
    assert used[0]["input"] == {"malformed_arguments": '{"a": '}
    assert used[1]["input"] == {"malformed_arguments": "[1]"}
    assert [block["id"] for block in used] == [block["tool_use_id"] for block in answered]
    assert all(len(block["id"]) <= 64 and block["id"].replace("_", "").isalnum() for block in used)


async def test_blank_text_is_left_out_and_conversation_begins_with_user() -> None:
    sent = await body(request(User.of("  "), Assistant((Text("Hello"),)), User((Text(""), Text("hi")))), cache=False)
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["messages"][2]["content"] == [{"type": "text", "text": "hi"}]


@pytest.mark.requirement("provider.request.images")
@pytest.mark.parametrize(
    "file", ["streams/anthropic/text_document", *recorded(["anthropic/text_document_as_binary_content_input"])]
)
async def test_images_and_files_are_sent_natively_also_in_tool_results(file: str) -> None:
    document = json.loads(exchange(file).request_body)["messages"][0]["content"][1]
    note = base64.b64encode(document["source"]["data"].encode()).decode()
    parts = (
        Text("see"),
        Image("image/png", data=PIXEL),
        Image("image/png", url="https://x.test/a.png"),
        File("application/pdf", data=PIXEL, name="a.pdf"),
        File("text/plain", data=note),
        File("application/zip", data=PIXEL, name="a.zip"),
    )
    native = [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PIXEL},
            "title": "a.pdf",
        },
        document,
    ]
    calls = Assistant((ToolCall("a", "x"),))
    sent = await body(request(User(parts), calls, ToolResults((ToolResult("a", "x", parts),))), cache=False)
    assert sent["messages"][0]["content"][:5] == native
    assert sent["messages"][2]["content"][0]["content"][:5] == native
    assert "a.zip" in sent["messages"][0]["content"][5]["text"]


@pytest.mark.requirement("provider.request.tool_names")
async def test_names_that_the_api_refuses_are_mapped_without_collisions() -> None:
    names = ["files.read", "x" * 80, "ok_name-1"]
    sent = await body(request(tools=[tool(name) for name in names]))
    native = [declared["name"] for declared in sent["tools"]]
    assert all(len(name) <= 64 and name.replace("_", "").replace("-", "").isalnum() for name in native)
    assert native[2] == "ok_name-1"
    transport = RecordedTransport([])
    for pair in (["a.b", "a_b"], ["web_search", "provider:web_search"]):
        with pytest.raises(ProviderError) as raised:
            await collect(Anthropic(transport=transport, api_key=""), request(tools=[tool(name) for name in pair]))
        assert raised.value.cls == "invalid_request"
    assert transport.sent == []


async def test_schemas_are_sent_verbatim_or_repaired_as_needed() -> None:
    verbatim = b'{"type": "object",  "properties": {"a": {"anyOf": [{"type": "string"}]}}}'
    one = b'{"properties":{"a":{"type":"string"},"k":{}},"required":["a","k"]}'
    union = b'{"anyOf":[' + one + b',{"properties":{"b":{}},"required":["k"]}]}'
    sent = await send(request(tools=[tool("one", verbatim), tool("two", b"{}"), tool("three", union)]))
    assert b'"input_schema":' + verbatim in sent.body
    two, three = (declared["input_schema"] for declared in json.loads(sent.body)["tools"][1:])
    assert two == {"type": "object", "properties": {}}
    assert three == {"type": "object", "properties": {"a": {"type": "string"}, "k": {}, "b": {}}, "required": ["k"]}


@pytest.mark.requirement("provider.tools.response_schema")
async def test_output_schema_of_tool_is_part_of_its_description() -> None:
    sent = await body(request(tools=[tool("look", output_schema=Raw(b'{"type":"number"}'))]))
    assert sent["tools"][0]["description"].startswith("does look\n")
    assert '{"type":"number"}' in sent["tools"][0]["description"]


@pytest.mark.requirement("provider.tools.builtin")
async def test_built_in_tool_is_sent_natively_unless_unknown() -> None:
    provider = Anthropic(transport=RecordedTransport([]), api_key="")
    assert "web_search" in provider.builtin_tools()
    sent = await body(request(tools=[tool("look"), tool("provider:web_search")]), cache=False)
    assert sent["tools"][1] == {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(ProviderError, match="provider:telepathy") as raised:
        await collect(provider, request(tools=[tool("provider:telepathy")]))
    assert raised.value.cls == "invalid_request"


@pytest.mark.requirement("provider.tools.builtin")
@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("claude-haiku-4-5", ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825"]),
        ("claude-opus-4-6", ["web_search_20260318", "web_fetch_20260318", "code_execution_20260521"]),
        ("claude-sonnet-5", ["web_search_20260318", "web_fetch_20260318", "code_execution_20260521"]),
        ("claude-fable-5", ["web_search_20260318", "web_fetch_20260318", "code_execution_20260521"]),
    ],
)
async def test_built_in_tool_has_newest_name_that_its_model_takes(model: str, kinds: list[str]) -> None:
    tools = [tool(f"provider:{name}") for name in ("web_search", "web_fetch", "code_execution")]
    sent = await body(request(model=model, tools=tools), cache=False)
    assert [one["type"] for one in sent["tools"]] == kinds
    declared = {"web_search": {"type": "web_search_20260209", "name": "web_search", "max_uses": 3}}
    sent = await body(request(model=model, tools=tools), cache=False, builtin_tools=declared)
    assert sent["tools"][0] == declared["web_search"]


@pytest.mark.requirement("provider.request.inspect", "provider.request.key_secrecy")
async def test_inspected_request_equals_the_sent_one_without_secrets() -> None:
    asked = request(User((Text("see"), Image("image/png", data=PIXEL))), system="Be brief.", tools=[tool("look")])
    shown = Anthropic(transport=RecordedTransport([]), api_key="sk-secret").native_request(asked)
    sent = await send(asked)
    assert shown.headers_redacted == {**sent.headers, "x-api-key": "[redacted]"}
    assert PIXEL.encode() not in shown.body
    got, want = json.loads(shown.body), json.loads(sent.body)
    want["messages"][0]["content"][1]["source"]["data"] = got["messages"][0]["content"][1]["source"]["data"]
    assert (shown.url, got) == (sent.url, want)


# Reasoning


@pytest.mark.requirement("provider.reasoning.anthropic")
@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-3-7-sonnet-latest", "claude-opus-4-6", "my-claude"])
async def test_the_thinking_budget_rises_with_the_level(model: str) -> None:
    budgets: list[int] = []
    for level in range(1, 101):
        sent = await body(request(model=model, reasoning=level, temperature=0.2, top_k=4, top_p=0.5))
        assert sent["thinking"]["type"] == "enabled"
        assert sent["temperature"] == 1
        assert not {"top_k", "top_p"} & set(sent)
        budgets.append(sent["thinking"]["budget_tokens"])
        assert budgets[-1] < sent["max_tokens"]
    assert budgets == sorted(budgets)
    assert budgets[0] == 1024
    assert budgets[79] == 8000
    assert "thinking" not in await body(request(model=model, reasoning=0))
    assert "thinking" not in await body(request(model=model))


@pytest.mark.requirement("provider.reasoning.anthropic")
async def test_thinking_budget_stays_below_the_output_limit() -> None:
    sent = await body(request(reasoning=80, max_output_tokens=2000))
    assert (sent["max_tokens"], sent["thinking"]["budget_tokens"]) == (2000, 1999)
    assert "thinking" not in await body(request(reasoning=80, max_output_tokens=1024))


@pytest.mark.parametrize(
    ("model", "off"),
    [
        ("claude-opus-4-7", {}),
        ("claude-sonnet-5", {"thinking": {"type": "disabled"}}),
        ("claude-sonnet-5-5", {"thinking": {"type": "between_tools"}}),
        ("claude-opus-5-5", {"output_config": {"effort": "low"}}),
        ("claude-fable-5", {"output_config": {"effort": "low"}}),
    ],
)
async def test_models_that_decide_by_themselves_get_an_effort(model: str, off: dict[str, Any]) -> None:
    efforts: list[str] = []
    for level in (15, 50, 80, 85, 86, 90, 95, 100):
        sent = await body(request(model=model, reasoning=level))
        assert sent["thinking"] == {"type": "adaptive", "display": "summarized"}
        efforts.append(sent["output_config"]["effort"])
    assert efforts == ["low", "medium", "high", "high", "xhigh", "xhigh", "xhigh", "max"]
    sent = await body(request(model=model, reasoning=0))
    assert {name: sent[name] for name in ("thinking", "output_config") if name in sent} == off


@pytest.mark.requirement("provider.reasoning.ignored")
async def test_a_model_that_cannot_think_gets_no_reasoning_field() -> None:
    sent = await body(request(model="claude-3-5-haiku-20241022", reasoning=80))
    assert not {"thinking", "output_config", "temperature"} & set(sent)
    assert sent["max_tokens"] == 8192
    assert not Anthropic(transport=RecordedTransport([]), api_key="").takes_reasoning("claude-3-5-haiku-20241022")


@pytest.mark.requirement("provider.reasoning.levels_map")
@pytest.mark.parametrize(
    ("level", "fields"),
    [
        (10, {}),
        (25, {}),
        (26, {"thinking": {"type": "enabled", "budget_tokens": 3000}}),
        (90, {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "xhigh"}}),
    ],
)
async def test_declared_levels_win_over_the_rule(level: int, fields: dict[str, Any]) -> None:
    levels = {"claude-own": {0: None, 50: 3000, 100: "xhigh"}}
    sent = await body(request(model="claude-own", reasoning=level), reasoning_levels=levels)
    assert {name: sent[name] for name in ("thinking", "output_config") if name in sent} == fields


# Structured output


# Caching


@pytest.mark.requirement("provider.cache.markers")
async def test_three_breakpoints_are_set_and_none_with_caching_off() -> None:
    asked = request(*CONVERSATION, system="You are a guide.", tools=[tool("look"), tool("go")])
    sent = await body(asked)
    assert marks(sent) == 3
    assert sent["system"][-1]["cache_control"] == MARK
    assert sent["tools"][-1]["cache_control"] == MARK
    assert sent["messages"][-1]["content"][-1]["cache_control"] == MARK
    assert marks(await body(asked, cache=False)) == 0


@pytest.mark.requirement("provider.cache.markers")
async def test_the_newest_breakpoint_walks_back_over_thinking() -> None:
    thinking = Thinking("hm", "anthropic", "sig")
    redacted = Thinking(provider="anthropic", opaque=Raw(b'{"type":"redacted_thinking","data":"x"}'))
    sent = await body(request(User.of("hi"), Assistant((Text("a"), Text("b"), thinking, redacted))))
    assert [marks(block) for block in sent["messages"][1]["content"]] == [0, 1, 0, 0]
    assert marks(sent["messages"][0]) == 0


@pytest.mark.requirement("provider.cache.stable_prefix")
async def test_sent_prefix_keeps_its_bytes_after_a_restart() -> None:
    native: list[bytes | None] = []
    before: SentRequest | None = None
    for count in range(2, len(CONVERSATION) + 1):
        messages = CONVERSATION[:count]
        fields: dict[str, Any] = {"system": "You are a guide.", "tools": [tool("look")]}
        sent = await send(ModelRequest("claude-sonnet-4-5", messages, native=native, **fields))
        assert (await send(ModelRequest("claude-sonnet-4-5", messages, **fields))).body == sent.body
        assert len(native) == count
        if before is not None:
            # All but the newest message's breakpoint and the closing brackets.
            mark = b',"cache_control":{"type":"ephemeral"}'
            stable = before.body[: before.body.rindex(mark)]
            assert sent.body.startswith(stable)
            assert unmarked(json.loads(sent.body)["system"]) == unmarked(json.loads(before.body)["system"])
        before = sent


@pytest.mark.requirement("provider.cache.stable_prefix")
async def test_a_message_is_encoded_once() -> None:
    native: list[bytes | None] = []
    await send(ModelRequest("claude-sonnet-4-5", CONVERSATION[:3], native=native))
    kept = list(native)
    await send(ModelRequest("claude-sonnet-4-5", CONVERSATION, native=native))
    assert all(old is new for old, new in zip(kept, native, strict=False))
    assert not any(b"cache_control" in (fragment or b"") for fragment in native)


@pytest.mark.requirement("provider.cache.anthropic_extras")
async def test_betas_and_context_management_reach_the_request_unchanged() -> None:
    settings = {"edits": [{"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 30000}}]}
    sent = await send(request(), betas=["context-management-2025-06-27", "other"], context_management=settings)
    assert sent.headers["anthropic-beta"] == "context-management-2025-06-27,other"
    assert json.loads(sent.body)["context_management"] == settings


# Provider-owned data


@pytest.mark.requirement("provider.extra.other_provider")
async def test_foreign_provider_data_is_omitted() -> None:
    foreign = Assistant(
        (
            Thinking("secret thoughts", "openai", "sig", Raw(b'{"encrypted":1}')),
            Opaque("google", Raw(b'{"blob":1}')),
            ProviderCall("w", "web_search", "openai", opaque=Raw(b'{"type":"web_search_call"}')),
            Text("Hello"),
            ToolCall("c", "t", "{}", "google", Raw(b'{"thoughtSignature":"x"}')),
        )
    )
    only = Assistant((Thinking("more thoughts", "openai", "sig"),))
    sent = await body(
        request(User.of("hi"), foreign, ToolResults((ToolResult("c", "t", (Text("1"),)),)), only, User.of("go")),
        cache=False,
    )
    assert sent["messages"][1]["content"] == [
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "c", "name": "t", "input": {}},
    ]
    assert [block["type"] for block in sent["messages"][2]["content"]] == ["tool_result", "text"]
    assert len(sent["messages"]) == 3


@pytest.mark.requirement("provider.extra.round_trip")
async def test_fields_that_came_with_a_call_go_back_with_it() -> None:
    call = ToolCall("c", "t", "{}", "anthropic", Raw(b'{"caller":{"type":"code_execution_20250825","tool_id":"s"}}'))
    sent = await body(request(User.of("hi"), Assistant((call,))), cache=False)
    assert sent["messages"][1]["content"][0]["caller"] == {"type": "code_execution_20250825", "tool_id": "s"}
