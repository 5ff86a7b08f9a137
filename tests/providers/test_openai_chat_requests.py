"""What the servers that speak Chat Completions are sent."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from openai_chat_kit import DONE, HELLO, KEY, chat, part, sent
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
    System,
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
from weftline.providers.openai.profiles import PROFILES
from weftline.testing.recordings import RecordedTransport, replay

LEVELS = [
    ("openai", "gpt-5", {0: "minimal", 15: "minimal", 30: "low", 50: "medium", 80: "high", 100: "high"}),
    ("openai", "gpt-5.1", {0: "none", 15: "low", 30: "low", 50: "medium", 80: "high", 100: "high"}),
    ("openai", "gpt-5.2", {0: "none", 80: "high", 85: "high", 90: "xhigh", 100: "xhigh"}),
    ("openai", "gpt-6-astra", {0: "low", 90: "xhigh", 100: "max"}),
    ("mistral", "mistral-medium-latest", {0: "none", 50: "high", 100: "high"}),
    ("mistral", "mistral-small-2501", {50: None}),
    ("openai", "o3-mini", {0: "low", 30: "low", 50: "medium", 80: "high"}),
    ("openai", "gpt-5-pro", {0: "high", 50: "high"}),
    ("openai", "gpt-4o", {0: None, 80: None}),
    ("openai", "gpt-5-chat-latest", {0: None, 80: None}),
    ("groq", "openai/gpt-oss-120b", {0: "low", 80: "high"}),
    ("groq", "llama-3.3-70b-versatile", {0: None, 80: None}),
    ("cerebras", "gpt-oss-120b", {50: "medium"}),
    ("xai", "grok-4", {0: None, 30: None, 80: None}),
    ("ollama", "llama3.2", {80: None}),
]


@pytest.mark.requirement("provider.reasoning.ignored")
@pytest.mark.parametrize(("profile", "model", "levels"), LEVELS)
async def test_level_becomes_words_of_model_or_no_field(
    profile: str, model: str, levels: dict[int, str | None]
) -> None:
    for level, effort in levels.items():
        body = await sent(ask(model=model, reasoning=level), profile)
        assert body.get("reasoning_effort") == effort
        assert "reasoning" not in body


async def test_no_level_sends_no_field() -> None:
    body = await sent(ask(model="gpt-5"))
    assert "reasoning_effort" not in body


async def test_openrouter_takes_level_as_object_and_grok_takes_none() -> None:
    asked = {
        level: (await sent(ask(model="anthropic/claude-sonnet-4.5", reasoning=level), "openrouter"))["reasoning"]
        for level in (0, 15, 30, 50, 80, 90)
    }
    assert [one["effort"] for one in asked.values()] == ["none", "minimal", "low", "medium", "high", "xhigh"]
    assert "reasoning" not in await sent(ask(model="x-ai/grok-4", reasoning=80), "openrouter")


@pytest.mark.requirement("provider.reasoning.levels_map")
async def test_declared_levels_win_over_the_rule_of_the_family() -> None:
    levels = {"my-model": {0: None, 20: "brief", 60: "deep"}}
    words = [
        (await sent(ask(model="my-model", reasoning=level), "compatible", reasoning_levels=levels)).get(
            "reasoning_effort"
        )
        for level in (0, 10, 11, 40, 41, 100)
    ]
    assert words == [None, None, "brief", "brief", "deep", "deep"]


@pytest.mark.requirement("provider.request.conversation")
async def test_stored_conversation_is_sent_natively_with_results_together() -> None:
    calls = (ToolCall("c1", "look", '{"a":1}', "anthropic"), ToolCall("c2", "look", "{}", "anthropic"))
    results = (
        ToolResult("c1", "look", (Text("one"),)),
        ToolResult("c2", "look", (Text("two"),), is_error=True),
    )
    history: list[Message] = [
        System("Be kind."),
        User.of("Hello"),
        Assistant((Text("Let me see."), *calls)),
        ToolResults(results),
        User.of("And now?"),
    ]
    body = await sent(ask(*history, system="Be brief.", tools=[spec()]))
    function = {"name": "look", "arguments": '{"a":1}'}
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
            "content": "Let me see.",
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "user", "content": "And now?"},
    ]
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.requirement("provider.request.images")
async def test_images_of_tool_results_follow_in_a_user_message() -> None:
    results = ToolResults(
        (
            ToolResult("c1", "shot", (Text("Done."), Image("image/png", data="QUJD"))),
            ToolResult("c2", "shot", (Image("image/jpeg", url="https://example.org/a.jpg"),)),
        )
    )
    user = User((Text("See:"), Image("image/gif", data="R0lG")))
    body = await sent(ask(user, Assistant((ToolCall("c1", "shot"), ToolCall("c2", "shot"))), results))
    assert body["messages"][0]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/gif;base64,R0lG"},
    }
    first, second, extra = body["messages"][2:]
    assert (first["role"], first["content"]) == ("tool", "Done.")
    assert second["role"] == "tool"
    assert extra["role"] == "user"
    assert [one["image_url"]["url"] for one in extra["content"] if one["type"] == "image_url"] == [
        "data:image/png;base64,QUJD",
        "https://example.org/a.jpg",
    ]


async def test_model_that_cannot_see_gets_note_in_place_of_image() -> None:
    models = [ModelInfo("blind", vision=False)]
    results = ToolResults((ToolResult("c1", "shot", (Image("image/png", data="QUJD"),)),))
    history = (User((Image("image/png", data="QUJD"),)), Assistant((ToolCall("c1", "shot"),)), results)
    body = await sent(ask(*history, model="blind"), "vllm", models=models)
    assert len(body["messages"]) == 3
    assert "QUJD" not in str(body)


async def test_files_are_sent_where_they_are_understood() -> None:
    user = User((File("application/pdf", data="QUJD", name="a.pdf"), File("text/plain", data="aGV5", name="b.txt")))
    native = (await sent(ask(user)))["messages"][0]["content"]
    assert native[0]["file"] == {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}
    assert "hey" in native[1]["text"]
    assert "QUJD" not in str(await sent(ask(user), "groq"))


async def test_malformed_arguments_of_the_past_cannot_break_a_request() -> None:
    body = await sent(ask(User.of("a"), Assistant((ToolCall("c", "look", '{"a":'),))), "vllm")
    arguments = body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert msgspec.json.decode(arguments) == {"malformed_arguments": '{"a":'}


@pytest.mark.requirement("provider.request.tool_names")
async def test_tool_with_a_disallowed_name_keeps_its_own_name() -> None:
    stream = events(
        part({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "files_read", "arguments": "{}"}}]}),
        part({}, "tool_calls"),
        DONE,
    )
    transport = answering(stream)
    request = ask(
        User.of("a"),
        Assistant((ToolCall("z", "files.read"),)),
        tools=[spec("files.read")],
        tool_choice=("tool", "files.read"),
    )
    got = await answer(chat(transport), request)
    body = msgspec.json.decode(transport.sent[0].body)
    assert [call.name for call in got.message().calls] == ["files.read"]
    assert body["tools"][0]["function"]["name"] == "files_read"
    assert body["tool_choice"] == {"type": "function", "function": {"name": "files_read"}}
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == "files_read"


@pytest.mark.requirement("provider.request.tool_names")
async def test_tools_that_collide_are_refused_before_the_request() -> None:
    transport = answering(HELLO)
    with pytest.raises(ProviderError) as caught:
        await answer(chat(transport), ask(tools=[spec("a.b"), spec("a/b")]))
    assert caught.value.cls == "invalid_request"
    assert transport.sent == []


@pytest.mark.requirement("provider.request.parameters")
async def test_parameters_appear_natively_without_those_a_server_lacks() -> None:
    request = ask(
        tools=[spec()],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=100,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stop=["END"],
    )
    native = await sent(request)
    assert {key: native[key] for key in ("tool_choice", "parallel_tool_calls", "temperature", "top_p", "stop")} == {
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["END"],
    }
    assert native["max_completion_tokens"] == 100
    assert "top_k" not in native
    other = await sent(request, "vllm")
    assert (other["max_tokens"], other["top_k"]) == (100, 40)
    assert "parallel_tool_calls" not in await sent(request, "deepseek")


async def test_models_that_reason_are_sent_no_sampling() -> None:
    body = await sent(ask(model="gpt-5", temperature=0.5, top_p=0.9, stop=["x"], reasoning=50))
    assert not {"temperature", "top_p", "stop"} & body.keys()
    off = await sent(ask(model="gpt-5.1", temperature=0.5, reasoning=0))
    assert off["temperature"] == 0.5


async def test_request_without_tools_has_no_tool_choice() -> None:
    assert not {"tools", "tool_choice"} & (await sent(ask(tool_choice="required"))).keys()
    assert (await sent(ask(tools=[spec()], tools_disabled=True)))["tool_choice"] == "none"


@pytest.mark.requirement("provider.tools.response_schema")
async def test_return_type_is_part_of_a_tool_description() -> None:
    tool = msgspec.structs.replace(spec(description="Looks."), output_schema=Raw(b'{"type":"integer"}'))
    function = (await sent(ask(tools=[tool])))["tools"][0]["function"]
    assert function["description"].startswith("Looks.")
    assert '{"type":"integer"}' in function["description"]


SCHEMA = OutputSchema("report", Raw(b'{"type": "object", "properties": { }, "additionalProperties": false}'))


CLOSED = '"required":["a"],"additionalProperties":false}'


@pytest.mark.parametrize(
    ("schema", "strict", "same"),
    [
        ('{"type":"object","properties":{"a":{"type":"string"}},' + CLOSED, True, True),
        ('{"type": "object", "properties": {"a": {"type": "string"}}}', True, False),
        ('{"type":"object","properties":{"a":{"type":"string","default":"x"}},' + CLOSED, True, False),
        ('{"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}', False, True),
        ('{"type":"object"}', False, False),
        ('{"type":"object","properties":{"a":{"type":"array"}}}', False, False),
        ('{"anyOf":[{"type":"object","properties":{"a":{}}},{"type":"object","properties":{"b":{}}}]}', False, False),
        ("true", False, False),
    ],
)  # fmt: skip
async def test_schemas_are_sent_as_written_where_api_takes_them_so(schema: str, strict: bool, same: bool) -> None:
    transport = answering(HELLO)
    await answer(chat(transport), ask(tools=[spec("look", schema)]))
    function = msgspec.json.decode(transport.sent[0].body)["tools"][0]["function"]
    assert function.get("strict", False) is strict
    assert (b'"parameters":' + schema.encode() in transport.sent[0].body) is same
    assert function["parameters"]["type"] == "object"
    assert isinstance(function["parameters"]["properties"], dict)
    assert "anyOf" not in function["parameters"]


async def test_requests_name_their_conversation_for_server_caches() -> None:
    assert (await sent(ask(cache_key="run_1")))["prompt_cache_key"] == "run_1"
    assert "prompt_cache_key" not in await sent(ask())
    for profile in ("openrouter", "vllm", "mistral"):
        assert "prompt_cache_key" not in await sent(ask(cache_key="run_1"), profile)


async def test_mistral_gets_its_thoughts_back_as_part_of_the_content() -> None:
    thought = Thinking("Hm.", "mistral")
    calls = (ToolCall("c1", "look", "{}", "mistral"),)
    history = [
        User.of("Hello"),
        Assistant((thought, Text("I look."), *calls)),
        ToolResults((ToolResult("c1", "look", (Text("one"),)),)),
        Assistant((Thinking("Not mine.", "openai"), Text("Done."))),
        User.of("More"),
    ]
    body = await sent(ask(*history, tools=[spec()]), "mistral")
    assert body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "I look."},
    ]
    assert body["messages"][3]["content"] == "Done."
    assert "stream_options" not in body


@pytest.mark.requirement("provider.request.inspect")
async def test_native_request_can_be_inspected_without_key_and_binary_content() -> None:
    transport = answering(HELLO)
    provider = chat(transport)
    request = ask(User((Text("See:"), Image("image/png", data="QUJD" * 100))), system="Be brief.")
    shown = provider.native_request(request)
    await answer(provider, request)
    sent_body = transport.sent[0].body
    assert shown.url == transport.sent[0].url == "http://stand-in/v1/chat/completions"
    assert shown.body.replace(b"[elided]", b"QUJD" * 100) == sent_body
    assert KEY in transport.sent[0].headers["Authorization"]
    assert KEY not in str(shown.headers_redacted)
    assert shown.headers_redacted.keys() == transport.sent[0].headers.keys()


def cached_places(body: Any) -> list[str]:
    places = [f"tool {index}" for index, tool in enumerate(body.get("tools", [])) if "cache_control" in tool]
    for index, message in enumerate(body["messages"]):
        content = message.get("content")
        if isinstance(content, list):
            parts: list[Any] = list(content)  # pyright: ignore[reportUnknownArgumentType]  decoded JSON
            places += [f"message {index}.{n}" for n, one in enumerate(parts) if "cache_control" in one]
    return places


CONVERSATION: tuple[Message, ...] = (
    User.of("Hello"),
    Assistant((Text("Let me look."), ToolCall("c1", "b"))),
    ToolResults((ToolResult("c1", "b", (Text("ok"),)),)),
)


@pytest.mark.requirement("provider.cache.markers")
@pytest.mark.parametrize(
    ("profile", "cache", "marked"),
    [
        ("openrouter", None, True),
        ("openrouter", False, False),
        ("compatible", None, False),
        ("compatible", True, True),
        ("cerebras", True, False),
        ("openai", True, False),
    ],
)
async def test_cache_markers_are_on_three_blocks_where_they_are_wanted(
    profile: str, cache: bool | None, marked: bool
) -> None:
    request = ask(*CONVERSATION, model="anthropic/claude-sonnet-4.5", system="Be brief.", tools=[spec("a"), spec("b")])
    body = await sent(request, profile, cache=cache)
    assert cached_places(body) == (["tool 1", "message 0.0", "message 3.0"] if marked else [])
    if not marked:
        assert "cache_control" not in str(body)


async def test_newest_message_without_a_marker_block_leaves_it_earlier() -> None:
    body = await sent(ask(User.of("Hello"), Assistant((ToolCall("c1", "b"),)), model="anthropic/claude"), "openrouter")
    assert cached_places(body) == ["message 0.0"]


async def test_a_marker_goes_on_an_image_too() -> None:
    body = await sent(ask(User((Text("a"), Image("image/png", data="QUJD"))), model="anthropic/claude"), "openrouter")
    assert cached_places(body) == ["message 0.1"]


@pytest.mark.requirement("provider.cache.stable_prefix")
@pytest.mark.parametrize("profile", ["openai", "openrouter", "groq"])
async def test_a_request_begins_with_the_bytes_of_the_one_before(profile: str) -> None:
    transport = RecordedTransport(replay(*[(200, SSE, HELLO)] * 3))
    provider = chat(transport, profile, cache=False)
    messages: list[Message] = [User.of("Hello")]
    request = ModelRequest("gpt-4o", messages, system="Be brief.", tools=[spec("a.b"), spec("c")])
    for index in range(3):
        await answer(provider, request)
        messages += [
            Assistant((ToolCall(f"c{index}", "a.b"),)),
            ToolResults((ToolResult(f"c{index}", "a.b", (Text("ok"),)),)),
        ]
    bodies = [one.body for one in transport.sent]
    for earlier, later in pairwise(bodies):
        prefix = earlier[: earlier.index(b'],"stream":')]
        assert later.startswith(prefix)
    # After a restart nothing is cached, and the bytes are the same.
    again = RecordedTransport(replay((200, SSE, HELLO)))
    fresh = ModelRequest("gpt-4o", messages[:5], system="Be brief.", tools=[spec("a.b"), spec("c")])
    await answer(chat(again, profile, cache=False), fresh)
    assert again.sent[0].body == bodies[2]


async def test_a_message_is_encoded_once() -> None:
    request = ask(User.of("Hello"), User.of("again"))
    request.native[:] = [b'{"role":"user","content":"kept"}', None]
    body = await sent(request)
    assert [message["content"] for message in body["messages"]] == ["kept", "again"]
    assert request.native[1] == b'{"role":"user","content":"again"}'


SCHEMA_WORDS = {
    ("always", "prompt"): "natively",
    ("no_tools", "tool"): "natively; beside tools as a tool",
    ("never", "tool"): "as a tool",
    ("never", "prompt"): "in the prompt",
}


def test_every_profile_is_documented_as_it_is(project_root: Path) -> None:
    page = (project_root / "docs" / "providers" / "openai.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))
    for name, profile in PROFILES.items():
        cells = [cell.strip().strip("`") for cell in rows[name].split("|")]
        assert cells[:4] == [
            profile.base_url or "yours",
            profile.key_env or "–",
            profile.default_model or "–",
            SCHEMA_WORDS[profile.schema, profile.schema_else],
        ]
