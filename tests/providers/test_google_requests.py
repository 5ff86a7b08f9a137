"""What the Gemini family sends: conversation, tools, reasoning, structured output."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from google_kit import (
    CITY,
    KEY,
    NEW,
    OLD,
    WEATHER,
    answer,
    ask,
    body_of,
    call_part,
    chunks_of,
    raw_body,
    sse,
)
from msgspec import Raw

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
from weftline.providers.assemble import collect
from weftline.providers.base import (
    ModelRequest,
    ProviderError,
    TextDelta,
    ToolSpec,
)
from weftline.providers.google.provider import Google
from weftline.testing.recordings import RecordedTransport


@pytest.mark.requirement("provider.request.parameters")
def test_parameters_have_native_names_and_unset_ones_are_omitted() -> None:
    body = body_of(
        ModelRequest(
            NEW,
            [User.of("Hi")],
            tools=[WEATHER],
            parallel_tool_calls=False,
            max_output_tokens=9,
            temperature=0.5,
            top_p=0.9,
            top_k=3,
            stop=["END"],
        )
    )
    assert body["generationConfig"] == {
        "maxOutputTokens": 9,
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 3,
        "stopSequences": ["END"],
    }
    assert set(body) == {"contents", "tools", "generationConfig"}
    assert set(body_of(ModelRequest(NEW, [User.of("Hi")]))) == {"contents"}


@pytest.mark.requirement("provider.request.parameters")
def test_the_tool_choice_is_a_function_calling_mode() -> None:
    def config(**choice: Any) -> Any:
        return body_of(ModelRequest(NEW, [User.of("Hi")], tools=[WEATHER], **choice)).get("toolConfig")

    assert config() is None
    assert config(tool_choice="none") == {"functionCallingConfig": {"mode": "NONE"}}
    assert config(tools_disabled=True) == {"functionCallingConfig": {"mode": "NONE"}}
    assert config(tool_choice="required") == {"functionCallingConfig": {"mode": "ANY"}}
    assert config(tool_choice=("tool", "get_weather")) == {
        "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["get_weather"]}
    }
    assert "toolConfig" not in body_of(ModelRequest(NEW, [User.of("Hi")], tool_choice="required"))


@pytest.mark.requirement("provider.request.conversation")
def test_system_messages_stay_first_or_in_place() -> None:
    messages = [System("A"), User.of("Hi"), Assistant((Text("Yes?"),)), System("B"), Assistant(())]
    body = body_of(ModelRequest(NEW, messages, system="S"))
    assert body["systemInstruction"] == {"parts": [{"text": "S\n\nA"}]}
    assert [(content["role"], content["parts"]) for content in body["contents"]] == [
        ("user", [{"text": "Hi"}]),
        ("model", [{"text": "Yes?"}]),
        ("user", [{"text": "B"}]),
    ]


@pytest.mark.requirement("provider.request.conversation")
def test_results_of_a_turn_are_one_content() -> None:
    calls = Assistant((ToolCall("1", "a", '{"x":1}'), ToolCall("2", "b", "not json")))
    results = ToolResults((ToolResult("1", "a", (Text("ok"),)), ToolResult("2", "b", (Text("bad"),), is_error=True)))
    contents = body_of(ModelRequest(OLD, [User.of("Hi"), calls, results]))["contents"]
    assert contents[1]["parts"][1]["functionCall"]["args"] == {"invalid_arguments": "not json"}
    assert contents[2] == {
        "role": "user",
        "parts": [
            {"functionResponse": {"id": "1", "name": "a", "response": {"output": "ok"}}},
            {"functionResponse": {"id": "2", "name": "b", "response": {"error": "bad"}}},
        ],
    }


@pytest.mark.requirement("provider.request.images")
async def test_images_are_inline_or_by_address_for_gemini() -> None:
    photo, pdf = Image("image/png", data="aGk="), File("application/pdf", url="https://example.test/a.pdf")
    inlined = Image("image/png", url="data:image/jpeg;base64,aGk=")
    messages = [
        User((photo, pdf, inlined)),
        Assistant((ToolCall("1", "shot"),)),
        ToolResults((ToolResult("1", "shot", (Text("done"), photo)),)),
    ]
    native = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    for model in (OLD, NEW):
        transport = RecordedTransport(sse(answer({"text": "ok"})))
        await collect(Google(transport=transport), ModelRequest(model, messages))
        contents = json.loads(transport.sent[0].body)["contents"]
        assert contents[0]["parts"] == [
            native,
            {"fileData": {"mimeType": "application/pdf", "fileUri": "https://example.test/a.pdf"}},
            {"inlineData": {"mimeType": "image/jpeg", "data": "aGk="}},
        ]
        result, *loose = contents[2]["parts"]
        assert result["functionResponse"].get("parts", []) == ([native] if model == NEW else [])
        assert loose == ([] if model == NEW else [native])


@pytest.mark.requirement("provider.request.tool_names")
async def test_names_that_gemini_refuses_are_mapped_and_restored() -> None:
    original = "9 files/" + "x" * 80
    tool = ToolSpec(original, "", WEATHER.parameters)
    request = ModelRequest(NEW, [User.of("Hi")], tools=[tool], tool_choice=("tool", original))
    body = body_of(request)
    sent = body["tools"][0]["functionDeclarations"][0]["name"]
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}", sent)
    assert body["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"] == [sent]
    read = await ask(sse(answer(call_part(sent, {}))), request)
    assert [call.name for call in read.message().calls] == [original]
    request.messages = [User.of("Hi"), Assistant((ToolCall("1", original),))]
    request.native.clear()
    assert body_of(request)["contents"][1]["parts"][0]["functionCall"]["name"] == sent


@pytest.mark.requirement("provider.request.tool_names")
async def test_tools_with_equal_sent_names_fail_before_the_request() -> None:
    transport = RecordedTransport([])
    tools = [ToolSpec(name, "", WEATHER.parameters) for name in ("a/b", "a b")]
    with pytest.raises(ProviderError) as caught:
        await collect(Google(transport=transport), ModelRequest(NEW, [User.of("Hi")], tools=tools))
    assert caught.value.cls == "invalid_request"
    assert transport.sent == []


@pytest.mark.requirement("provider.tools.response_schema")
def test_tools_output_schema_is_response_schema_of_its_declaration() -> None:
    schema = Raw(b'{"type":"object","properties":{"c":{"type":"number"}}}')
    tool = msgspec.structs.replace(WEATHER, output_schema=schema)
    [declaration] = body_of(ModelRequest(NEW, [User.of("Hi")], tools=[tool]))["tools"][0]["functionDeclarations"]
    assert declaration["responseJsonSchema"] == json.loads(bytes(schema))
    assert declaration["description"] == WEATHER.description


def test_schema_that_gemini_accepts_is_unchanged_and_others_repaired() -> None:
    assert b'"parametersJsonSchema":' + bytes(WEATHER.parameters) in raw_body(
        ModelRequest(NEW, [User.of("Hi")], tools=[WEATHER])
    )
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "const": {"const": "a"},
            "n": {"type": "integer", "exclusiveMinimum": 0, "description": "Count."},
            "any": True,
            "ref": {"$ref": "#/definitions/D"},
        },
        "allOf": [{"required": ["n"], "properties": {"extra": {"type": "string", "examples": ["x"]}}}],
        "definitions": {"D": {"type": "string", "not": {"const": "b"}}},
    }
    tool = ToolSpec("t", "", Raw(msgspec.json.encode(schema)))
    [declaration] = body_of(ModelRequest(NEW, [User.of("Hi")], tools=[tool]))["tools"][0]["functionDeclarations"]
    assert declaration["parametersJsonSchema"] == {
        "type": "object",
        "properties": {
            "const": {"enum": ["a"], "type": "string"},
            "n": {"type": "integer", "description": "Count. Must be greater than 0."},
            "any": {},
            "ref": {"$ref": "#/$defs/D"},
            "extra": {"type": "string"},
        },
        "required": ["n"],
        "$defs": {"D": {"type": "string"}},
    }


@pytest.mark.requirement("provider.tools.builtin")
async def test_built_in_tools_are_sent_natively_before_the_request() -> None:
    provider = Google(transport=(transport := RecordedTransport([])))
    assert "google_search" in provider.builtin_tools()
    search = ToolSpec("provider:google_search", "", Raw(b"{}"))
    body = body_of(ModelRequest(NEW, [User.of("Hi")], tools=[WEATHER, search]))
    assert [list(tool) for tool in body["tools"]] == [["functionDeclarations"], ["googleSearch"]]
    assert body["toolConfig"] == {"includeServerSideToolInvocations": True}
    unknown = ToolSpec("provider:teleport", "", Raw(b"{}"))
    with pytest.raises(ProviderError, match="teleport") as caught:
        await collect(provider, ModelRequest(NEW, [User.of("Hi")], tools=[unknown]))
    assert caught.value.cls == "invalid_request"
    assert transport.sent == []


@pytest.mark.requirement("provider.cache.stable_prefix")
def test_request_prefix_stays_the_same_between_turns() -> None:
    provider = Google(transport=RecordedTransport([]))
    messages: list[Message] = [User.of("Hi")]
    request = ModelRequest(OLD, messages, system="S", tools=[WEATHER], output_schema=CITY, reasoning=30)
    before = provider.native_request(request).body
    cached = request.native[0]
    prefix = before[: before.index(b'"contents":[') + len(b'"contents":[') + len(cached or b"")]
    messages += [Assistant((ToolCall("1", "get_weather"),)), ToolResults((ToolResult("1", "get_weather", ()),))]
    request.tools_disabled = True
    request.reasoning = 0
    after = provider.native_request(request).body
    assert after.startswith(prefix)
    assert request.native[0] is cached
    restarted = msgspec.structs.replace(request, native=[], tools=[msgspec.structs.replace(WEATHER)])
    assert Google(transport=RecordedTransport([])).native_request(restarted).body == after


@pytest.mark.requirement("provider.extra.other_provider")
def test_foreign_provider_data_is_omitted_for_gemini_3() -> None:
    foreign = Assistant(
        (
            Thinking("secret", "anthropic", "sig"),
            Opaque("openai_responses", Raw(b'{"x":1}')),
            ProviderCall("s1", "web_search", "anthropic", opaque=Raw(b'[{"x":1}]')),
            ToolCall("1", "a", "{}", "anthropic", Raw(b'{"x":1}')),
            ToolCall("2", "b"),
        )
    )
    plain: list[dict[str, Any]] = [
        {"functionCall": {"id": "1", "name": "a", "args": {}}},
        {"functionCall": {"id": "2", "name": "b", "args": {}}},
    ]
    assert body_of(ModelRequest(OLD, [User.of("Hi"), foreign]))["contents"][1]["parts"] == plain
    first, second = body_of(ModelRequest(NEW, [User.of("Hi"), foreign]))["contents"][1]["parts"]
    assert first == plain[0] | {"thoughtSignature": "skip_thought_signature_validator"}
    assert second == plain[1]


def test_thought_summaries_are_not_sent_back_and_signed_thoughts_are() -> None:
    message = Assistant((Thinking("hm", "google"), Thinking("so", "google", "c2ln"), Text("Yes.")))
    assert body_of(ModelRequest(NEW, [User.of("Hi"), message]))["contents"][1]["parts"] == [
        {"text": "so", "thought": True, "thoughtSignature": "c2ln"},
        {"text": "Yes."},
    ]


@pytest.mark.requirement("provider.request.inspect", "provider.request.key_secrecy")
async def test_inspected_request_is_one_sent_without_key_and_binary_content() -> None:
    transport = RecordedTransport(sse(answer({"text": "ok"})))
    provider = Google(transport=transport, api_key=KEY, base_url="http://gateway.test/gemini/v1/")
    request = ModelRequest(NEW, [User((Text("See"), Image("image/png", data="aGk=")))], tools=[WEATHER])
    shown = provider.native_request(request)
    await collect(provider, request)
    [sent] = transport.sent
    assert sent.url == shown.url == f"http://gateway.test/gemini/v1/models/{NEW}:streamGenerateContent?alt=sse"
    assert sent.headers == shown.headers_redacted | {"x-goog-api-key": KEY}
    assert b"aGk=" not in shown.body
    assert json.loads(sent.body)["tools"] == json.loads(shown.body)["tools"]
    assert KEY not in f"{shown!r}{provider!r}"


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (NEW, {0: "MINIMAL", 15: "MINIMAL", 30: "LOW", 50: "MEDIUM", 80: "HIGH", 100: "HIGH"}),
        ("gemini-4-argon", {0: "LOW", 15: "LOW", 30: "LOW", 50: "MEDIUM", 80: "HIGH"}),
        ("gemini-3-pro-preview", {0: "LOW", 30: "LOW", 50: "LOW", 80: "HIGH"}),
        ("gemini-flash-latest", {0: "MINIMAL", 80: "HIGH"}),
    ],
)
@pytest.mark.requirement("provider.reasoning.gemini")
def test_gemini_3_and_later_get_thinking_level_that_they_have(model: str, values: dict[int, str]) -> None:
    for level, value in values.items():
        config = body_of(ModelRequest(model, [User.of("Hi")], reasoning=level))["generationConfig"]["thinkingConfig"]
        assert config == {"thinkingLevel": value} | ({"includeThoughts": True} if level else {})


@pytest.mark.parametrize(
    ("model", "off", "least"), [(OLD, 0, 1), ("gemini-2.5-flash-lite", 0, 512), ("models/gemini-2.5-pro", 128, 128)]
)
@pytest.mark.requirement("provider.reasoning.gemini")
def test_gemini_2_5_budget_never_falls_with_the_level(model: str, off: int, least: int) -> None:
    configs = [
        body_of(ModelRequest(model, [User.of("Hi")], reasoning=level))["generationConfig"]["thinkingConfig"]
        for level in range(101)
    ]
    budgets = [config["thinkingBudget"] for config in configs]
    assert budgets == sorted(budgets)
    assert budgets[0] == off
    assert budgets[1] >= least
    assert [config.get("includeThoughts", False) for config in configs] == [False] + [True] * 100


@pytest.mark.parametrize("model", ["gemini-2.0-flash", "gemini-1.5-pro", "gemma-3-27b-it", "gemini-2.5-flash-image"])
@pytest.mark.requirement("provider.reasoning.ignored")
def test_models_that_do_not_think_get_no_reasoning_field(model: str) -> None:
    assert "generationConfig" not in body_of(ModelRequest(model, [User.of("Hi")], reasoning=80))
    assert "generationConfig" not in body_of(ModelRequest(NEW, [User.of("Hi")]))


@pytest.mark.parametrize(("model", "tools"), [(NEW, ()), (NEW, (WEATHER,)), (OLD, ())])
@pytest.mark.requirement("provider.schema.gemini", "provider.schema.with_reasoning")
def test_the_schema_is_sent_natively_where_the_model_takes_it(model: str, tools: tuple[ToolSpec, ...]) -> None:
    request = ModelRequest(model, [User.of("Hi")], tools=tools, output_schema=CITY, reasoning=50)
    config = body_of(request)["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert config["responseJsonSchema"] == json.loads(bytes(CITY.schema))
    assert config["thinkingConfig"]["includeThoughts"] is True
    assert "set_model_response" not in raw_body(request).decode()


@pytest.mark.requirement("provider.schema.gemini_tools", "provider.schema.with_reasoning")
async def test_gemini_2_5_with_tools_answers_through_a_function() -> None:
    request = ModelRequest(OLD, [User.of("Hi")], system="S", tools=[WEATHER], output_schema=CITY, reasoning=50)
    body = body_of(request)
    declarations = body["tools"][0]["functionDeclarations"]
    assert [declaration["name"] for declaration in declarations] == ["get_weather", "set_model_response"]
    assert declarations[1]["parametersJsonSchema"] == json.loads(bytes(CITY.schema))
    assert body["systemInstruction"]["parts"][0]["text"].startswith("S\n\n")
    assert "`set_model_response`" in body["systemInstruction"]["parts"][0]["text"]
    assert set(body["generationConfig"]) == {"thinkingConfig"}

    call = call_part("set_model_response", {"city": "Paris"})
    read = await ask(sse(answer({"text": "Here you are: "}, finish=None), answer(call)), request)
    assert (read.text, read.message().calls, read.finish_reason) == ('{"city":"Paris"}', (), "end_turn")
    assert TextDelta('{"city":"Paris"}') in await chunks_of(sse(answer(call)), request)


@pytest.mark.requirement("provider.schema.gemini_tools")
async def test_gemini_2_5_turn_with_other_tools_keeps_everything() -> None:
    request = ModelRequest(OLD, [User.of("Hi")], tools=[WEATHER], output_schema=CITY)
    read = await ask(sse(answer({"text": "Looking."}, call_part("get_weather", {"city": "Bern"}))), request)
    assert (read.text, [call.name for call in read.message().calls]) == ("Looking.", ["get_weather"])
    assert read.finish_reason == "tool_use"
    read = await ask(sse(answer({"text": "{}"})), request)
    assert (read.text, read.finish_reason) == ("{}", "end_turn")


@pytest.mark.requirement("provider.schema.gemini_tools")
def test_a_final_turn_without_tools_must_use_the_answer_function() -> None:
    request = ModelRequest(OLD, [User.of("Hi")], tools=[WEATHER], output_schema=CITY, tools_disabled=True)
    assert body_of(request)["toolConfig"]["functionCallingConfig"] == {
        "mode": "ANY",
        "allowedFunctionNames": ["set_model_response"],
    }


async def test_run_with_a_same_named_tool_still_calls_it() -> None:
    own = ToolSpec("set_model_response", "Mine.", WEATHER.parameters)
    request = ModelRequest(OLD, [User.of("Hi")], tools=[own], output_schema=CITY)
    names = [one["name"] for one in body_of(request)["tools"][0]["functionDeclarations"]]
    assert names == ["set_model_response", "set_model_response_2"]
    read = await ask(sse(answer(call_part("set_model_response", {"city": "x"}))), request)
    assert [call.name for call in read.message().calls] == ["set_model_response"]
    read = await ask(sse(answer(call_part("set_model_response_2", {"city": "Paris"}))), request)
    assert (read.text, read.message().calls) == ('{"city":"Paris"}', ())


@pytest.mark.parametrize("tools", [(), (WEATHER,)])
async def test_the_bytes_produced_before_the_output_limit_are_the_text(tools: tuple[ToolSpec, ...]) -> None:
    request = ModelRequest(OLD, [User.of("Hi")], tools=tools, output_schema=CITY)
    read = await ask(sse(answer({"text": '{"ci'}, finish="MAX_TOKENS")), request)
    assert (read.text, read.finish_reason) == ('{"ci', "max_tokens")
