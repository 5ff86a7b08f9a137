"""What the Responses API is sent."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from msgspec import Raw
from openai_responses_kit import HELLO, KEY, completed, responses, sent
from openai_stand_in import (
    SSE,
    answer,
    answering,
    ask,
    events,
    spec,
)

from weftline.messages import (
    Assistant,
    File,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResults,
    User,
)
from weftline.providers.base import (
    ModelInfo,
    ModelRequest,
    OutputSchema,
    ProviderError,
)
from weftline.testing.recordings import RecordedTransport, replay


async def test_requests_of_one_conversation_name_it() -> None:
    assert (await sent(ask(cache_key="run_1")))["prompt_cache_key"] == "run_1"
    assert "prompt_cache_key" not in await sent(ask())


LEVELS: list[tuple[str, dict[int, str | None]]] = [
    ("gpt-5", {0: "minimal", 15: "minimal", 30: "low", 50: "medium", 80: "high", 100: "high"}),
    ("gpt-5-mini-2025-08-07", {0: "minimal", 15: "minimal", 80: "high"}),
    ("gpt-5.5", {0: "none", 15: "low", 30: "low", 50: "medium", 80: "high", 90: "xhigh", 100: "xhigh"}),
    ("gpt-5.6-sol", {0: "none", 90: "xhigh", 100: "max"}),
    ("gpt-6-sol", {0: "none", 80: "high", 90: "xhigh", 100: "max"}),
    ("gpt-6-astra", {0: "low", 100: "max"}),
    ("gpt-5.1-codex", {0: "low", 80: "high", 100: "high"}),
    ("gpt-5.1-codex-max", {0: "low", 90: "xhigh"}),
    ("gpt-5.3-codex", {0: "low", 90: "xhigh"}),
    ("gpt-5.4-pro", {0: "medium", 80: "high", 100: "xhigh"}),
    ("o3", {0: "low", 15: "low", 30: "low", 50: "medium", 80: "high"}),
    ("o1-mini", {0: None, 80: None}),
    ("gpt-4o", {0: None, 30: None, 80: None}),
    ("gpt-4.1-mini", {80: None}),
    ("my-own", {80: None}),
]


@pytest.mark.requirement("provider.reasoning.openai")
@pytest.mark.parametrize(("model", "levels"), LEVELS)
async def test_level_becomes_effort_of_model_or_no_field(model: str, levels: dict[int, str | None]) -> None:
    provider = responses(answering(HELLO))
    for level, effort in levels.items():
        body = await sent(ask(model=model, reasoning=level))
        assert body.get("reasoning", {}).get("effort") == effort
        assert ("reasoning" in body) is (effort is not None)
        assert ("include" in body) is provider.takes_reasoning(model) is (effort is not None)


async def test_summary_is_requested_above_level_0_by_default() -> None:
    assert (await sent(ask(model="gpt-5", reasoning=50)))["reasoning"]["summary"] == "auto"
    assert "summary" not in (await sent(ask(model="gpt-5", reasoning=0)))["reasoning"]
    assert "summary" not in (await sent(ask(model="gpt-5", reasoning=50), reasoning_summary="none"))["reasoning"]
    assert "reasoning" not in await sent(ask(model="gpt-5"))


@pytest.mark.requirement("provider.schema.openai", "provider.schema.with_reasoning")
async def test_output_schema_is_sent_verbatim_on_every_turn() -> None:
    limited = b'{"type": "number", "minimum": 1.50, "maximum": 123456789012345678901234567890}'
    verbatim = (
        b'{"type": "object", "properties": {"a": %b}, "required": ["a"], "additionalProperties": false}' % limited
    )
    transport = RecordedTransport(replay(*[(200, SSE, HELLO)] * 2))
    provider = responses(transport)
    request = ask(model="gpt-5", tools=[spec()], output_schema=OutputSchema("report", Raw(verbatim)), reasoning=80)
    for _ in range(2):
        await answer(provider, request)
    for one in transport.sent:
        body = msgspec.json.decode(one.body)
        assert verbatim in one.body
        assert {name: body["text"]["format"][name] for name in ("type", "strict", "name")} == {
            "type": "json_schema",
            "strict": True,
            "name": "report",
        }
        assert body["reasoning"]["effort"] == "high"
        assert [tool["name"] for tool in body["tools"]] == ["look"]


@pytest.mark.requirement("provider.request.parameters")
async def test_parameters_appear_natively_without_those_the_api_lacks() -> None:
    body = await sent(
        ask(
            tools=[spec("a.b")],
            tool_choice=("tool", "a.b"),
            parallel_tool_calls=True,
            max_output_tokens=100,
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            stop=["END"],
            system="Be brief.",
        )
    )
    settings = {key: value for key, value in body.items() if key not in ("input", "tools")}
    assert settings == {
        "model": "gpt-4o",
        "instructions": "Be brief.",
        "store": False,
        "stream": True,
        "tool_choice": {"type": "function", "name": "a_b"},
        "parallel_tool_calls": True,
        "max_output_tokens": 100,
        "temperature": 0.5,
        "top_p": 0.9,
    }
    for choice in ("auto", "none", "required"):
        assert (await sent(ask(tools=[spec()], tool_choice=choice)))["tool_choice"] == choice
    assert (await sent(ask(tools=[spec()], tools_disabled=True)))["tool_choice"] == "none"
    drawing = [spec("provider:image_generation"), spec("provider:web_search")]
    chosen = (await sent(ask(tools=drawing, tool_choice=("tool", "provider:image_generation"))))["tool_choice"]
    assert chosen == {"type": "image_generation"}
    chosen = (await sent(ask(tools=drawing, tool_choice=("tool", "provider:web_search"))))["tool_choice"]
    assert chosen == {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}
    assert not {"temperature", "top_p"} & (await sent(ask(model="gpt-5", temperature=1, top_p=1))).keys()
    assert "parallel_tool_calls" not in await sent(ask(model="o3", tools=[spec()], parallel_tool_calls=True))


@pytest.mark.requirement("provider.request.images")
async def test_images_and_files_are_sent_natively_also_in_tool_results() -> None:
    image, linked = Image("image/png", data="QUJD"), Image("image/png", url="https://example.org/a.png")
    pdf = File("application/pdf", data="QUJD", name="a.pdf")
    results = ToolResults((ToolResult("c1", "shot", (Text("Done."), image, pdf)),))
    body = await sent(ask(User((Text("See:"), linked)), Assistant((ToolCall("c1", "shot"),)), results))
    assert body["input"][0]["content"] == [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"},
    ]
    assert body["input"][2]["output"] == [
        {"type": "input_text", "text": "Done."},
        {"type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"},
    ]
    blind = await sent(ask(User((image,)), model="blind"), models=[ModelInfo("blind", vision=False)])
    assert "QUJD" not in str(blind)


async def test_tools_say_whether_they_are_strict() -> None:
    closed = '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}'
    body = await sent(ask(tools=[spec("one", closed), spec("two", '{"type":"object"}')]))
    assert [(tool["name"], tool["strict"]) for tool in body["tools"]] == [("one", True), ("two", False)]
    assert body["tools"][1]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.requirement("provider.tools.builtin")
async def test_openai_tool_is_selected_by_name() -> None:
    searching = spec("provider:file_search", '{"vector_store_ids":["vs_1"]}')
    body = await sent(ask(tools=[spec(), searching, spec("provider:code_interpreter")]))
    assert [tool["type"] for tool in body["tools"]] == ["function", "file_search", "code_interpreter"]
    assert body["tools"][1]["vector_store_ids"] == ["vs_1"]
    body = await sent(ask(tools=[spec("provider:shell"), spec("provider:tool_search")]))
    assert body["tools"] == [{"type": "shell", "environment": {"type": "container_auto"}}, {"type": "tool_search"}]
    transport = answering(HELLO)
    provider = responses(transport)
    with pytest.raises(ProviderError, match="teleport") as caught:
        await answer(provider, ask(tools=[spec("provider:teleport")]))
    assert caught.value.cls == "invalid_request"
    assert transport.sent == []
    assert "web_search" in provider.builtin_tools()


@pytest.mark.requirement("provider.request.tool_names")
async def test_tool_with_a_disallowed_name_keeps_its_own_name() -> None:
    item = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "files_read", "arguments": "{}"}
    got = await answer(responses(answering(events(completed(item)))), ask(tools=[spec("files.read")]))
    assert [call.name for call in got.message().calls] == ["files.read"]


@pytest.mark.requirement("provider.cache.stable_prefix", "provider.cache.markers")
async def test_a_request_begins_with_the_bytes_of_the_one_before() -> None:
    transport = RecordedTransport(replay(*[(200, SSE, HELLO)] * 3))
    provider = responses(transport)
    messages: list[Message] = [User.of("Hello")]
    request = ModelRequest("gpt-5", messages, system="Be brief.", tools=[spec("a.b"), spec("c")])
    thought = Raw(b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA"}')
    for index in range(3):
        await answer(provider, request)
        messages.append(Assistant((Thinking("", "openai", None, thought), ToolCall(f"c{index}", "a.b"))))
        messages.append(ToolResults((ToolResult(f"c{index}", "a.b", (Text("ok"),)),)))
    bodies = [one.body for one in transport.sent]
    for earlier, later in pairwise(bodies):
        assert later.startswith(earlier[: earlier.index(b'],"store":')])
        assert b"cache_control" not in later
    again = RecordedTransport(replay((200, SSE, HELLO)))
    fresh = ModelRequest("gpt-5", messages[:5], system="Be brief.", tools=[spec("a.b"), spec("c")])
    await answer(responses(again), fresh)
    assert again.sent[0].body == bodies[2]


@pytest.mark.requirement("provider.request.inspect")
async def test_native_request_can_be_inspected_without_key_and_binary_content() -> None:
    transport = answering(HELLO)
    provider = responses(transport)
    request = ask(User((Image("image/png", data="QUJD" * 100),)))
    shown = provider.native_request(request)
    await answer(provider, request)
    assert shown.url == transport.sent[0].url == "http://stand-in/v1/responses"
    assert shown.body.replace(b"[elided]", b"QUJD" * 100) == transport.sent[0].body
    assert KEY not in f"{shown} {provider!r}"
    assert transport.sent[0].headers["Authorization"] == f"Bearer {KEY}"
