"""The Gemini family: answers, streams, usage, errors, and the official SDK beside it."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from google_kit import (
    KEY,
    NEW,
    OURS,
    RECORDED,
    WEATHER,
    answer,
    ask,
    body_of,
    call_part,
    chunks_of,
    comparable,
    failure,
    sse,
)
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from traffic import exchange, exchanges, recorded
from weftline.messages import (
    Assistant,
    Image,
    Message,
    Opaque,
    ProviderCall,
    Text,
    ToolResult,
    ToolResults,
    Usage,
    User,
)
from weftline.net.errors import TimeLimits
from weftline.net.transport import AiohttpTransport
from weftline.providers.assemble import collect
from weftline.providers.base import (
    Finish,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    ToolSpec,
)
from weftline.providers.google.provider import Google
from weftline.testing.recordings import Exchange, RecordedTransport, replay


@pytest.mark.parametrize("file", [*OURS, *recorded(RECORDED)])
@pytest.mark.requirement("provider.stream.equals_generate")
async def test_answers_are_read_to_the_end_however_split(file: str) -> None:
    for one in exchanges(file):
        model = one.uri.partition("/models/")[2].partition(":")[0]
        whole = await ask([one], ModelRequest(model, [User.of("Hi")]))
        split = await ask([one], ModelRequest(model, [User.of("Hi")]), piece_bytes=7)
        assert whole.finish_reason in {"end_turn", "tool_use", "max_tokens"}
        assert whole.usage.input > 0
        assert comparable(split) == comparable(whole)


async def test_data_after_the_finish_cannot_fail_the_answer() -> None:
    got = await ask([exchange("streams/google/events_after_the_finish")])
    assert (got.text, got.finish_reason) == ("High water is at noon.", "end_turn")
    assert got.usage == Usage(input=11, output=7)


@pytest.mark.parametrize(
    "more", [b"data: {not json\r\n\r\n", b'data: {"candidates":[{"content":{"parts":[7]}}]}\r\n\r\n']
)
async def test_nonsense_after_the_finish_is_ignored(more: bytes) -> None:
    whole = sse(answer({"text": "Hi"}))[0]
    behind = msgspec.structs.replace(whole, body=whole.body + more)
    assert (await ask([behind])).text == "Hi"
    before = msgspec.structs.replace(whole, body=more + whole.body)
    assert (await failure([before])).cls == "server"


async def test_the_first_finish_counts() -> None:
    got = await ask(sse(answer({"text": "Hi"}, finish="MAX_TOKENS"), answer(finish="STOP")))
    assert got.finish_reason == "max_tokens"


@pytest.mark.requirement("provider.family.available", "provider.request.conversation")
@pytest.mark.parametrize(
    ("file", "first", "second", "last"),
    [
        (
            "streams/google/tool_rounds",
            ("home_port", {"coast": "Finnmark"}),
            ("high_water", {"port": "Vardø"}),
            "High water in Vardø is at 04:12.\n",
        ),
        *recorded(
            [
                (
                    "google/google_model_iter_stream",
                    ("get_capital", {"country": "France"}),
                    ("get_temperature", {"city": "Paris"}),
                    "The temperature in Paris is 30°C.\n",
                )
            ]
        ),
    ],
)
async def test_tool_round_sends_call_and_result_under_one_id(
    file: str, first: tuple[str, Any], second: tuple[str, Any], last: str
) -> None:
    transport = RecordedTransport(exchanges(file))
    provider = Google(transport=transport, api_key=KEY)
    tools = [ToolSpec(name, "", Raw(b'{"type":"object"}')) for name, _ in (first, second)]
    messages: list[Message] = [User.of("Find out.")]
    request = ModelRequest("gemini-2.0-flash", messages, system="You are a helpful chatbot.", tools=tools)
    for number, result in enumerate(("one", "two°")):
        message = (await collect(provider, request)).message()
        call = msgspec.structs.replace(message.calls[0], id=f"c{number}")
        messages += [
            Assistant((call,)),
            ToolResults((ToolResult(call.id, call.name, (Text(result),)),)),
        ]
    assert (await collect(provider, request)).text == last
    assert transport.sent[0].url == (
        "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.0-flash:streamGenerateContent?alt=sse"
    )
    assert transport.sent[0].headers["x-goog-api-key"] == KEY
    contents = json.loads(transport.sent[-1].body)["contents"]
    assert [content["role"] for content in contents] == ["user", "model", "user", "model", "user"]
    assert contents[1]["parts"] == [
        {"functionCall": {"id": "c0", "name": first[0], "args": first[1]}},
    ]
    assert contents[4]["parts"] == [
        {"functionResponse": {"id": "c1", "name": second[0], "response": {"output": "two°"}}},
    ]


@pytest.mark.requirement("provider.tools.executed", "provider.usage.mapping")
@pytest.mark.parametrize(
    ("file", "query", "source"),
    [
        ("streams/google/web_search", "wind in Vardø today", "tides.example"),
        *recorded(
            [("google/google_model_web_search_tool_stream", "weather in San Francisco today", "timeanddate.com")]
        ),
    ],
)
async def test_web_search_is_recorded_and_its_tokens_are_input(file: str, query: str, source: str) -> None:
    read = await ask([exchange(file)])
    [search] = [part for part in read.message().parts if isinstance(part, ProviderCall)]
    assert (search.name, search.provider, search.status) == ("google_search", "google", "completed")
    assert search.input is not UNSET
    assert search.result is not UNSET
    assert json.loads(bytes(search.input)) == {"queries": [query]}
    assert json.loads(bytes(search.result))["groundingChunks"][1]["web"]["title"] == source
    assert read.usage == Usage(input=17 + 102, reasoning=412, output=241 + 412)
    assert read.finish_reason == "end_turn"


@pytest.mark.requirement("provider.extra.round_trip")
@pytest.mark.parametrize("file", ["streams/google/thought_signatures", *recorded(["google/google_model_retry"])])
async def test_thought_signature_returns_unchanged_on_call_and_text(file: str) -> None:
    first, _, last = exchanges(file)
    for one in (first, last):
        message = (await ask([one])).message()
        # As after a restart: through the stored form.
        stored = msgspec.json.decode(msgspec.json.encode(message), type=Assistant)
        sent = body_of(ModelRequest(NEW, [User.of("Hi"), stored]))["contents"][1]["parts"]
        received = json.loads(one.body)["candidates"][0]["content"]["parts"]
        assert [part["thoughtSignature"] for part in sent] == [part["thoughtSignature"] for part in received]
        assert [part.get("text") for part in sent] == [part.get("text") for part in received]


TURN = (
    answer({"text": "Let me ", "thought": True}, finish=None),
    answer({"text": "see.", "thought": True}, {"text": "Größe: "}, finish=None),
    answer({"text": "3 m"}, {"text": "", "thoughtSignature": "c2ln"}, finish=None),
    answer(
        call_part("get_weather", {"city": "Zürich", "n": 12345678901234567890}, thoughtSignature="YQ=="),
        call_part("get_weather", {"city": "Bern"}),
        usageMetadata={"promptTokenCount": 10, "candidatesTokenCount": 4, "thoughtsTokenCount": 3},
    ),
)


def merged(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    parts = [part for document in documents for part in document["candidates"][0]["content"]["parts"]]
    return answer(*parts, usageMetadata=documents[-1]["usageMetadata"])


@given(cuts=st.lists(st.integers(0, len(sse(*TURN)[0].body)), max_size=40))
@pytest.mark.requirement("provider.stream.equals_generate")
def test_chunks_do_not_depend_on_how_bytes_are_split(cuts: list[int]) -> None:
    whole = asyncio.run(ask(sse(*TURN)))
    assert comparable(asyncio.run(ask(sse(*TURN), cuts=cuts))) == comparable(whole)


@pytest.mark.requirement("provider.stream.equals_generate")
async def test_unstreamed_answer_gives_the_same_message_and_usage() -> None:
    streamed = await ask(sse(*TURN))
    pretty = json.dumps(merged(TURN), indent=2, ensure_ascii=False).encode()
    listed = json.dumps(TURN, ensure_ascii=False).encode()
    for body in (pretty, listed):
        assert comparable(await ask(replay((200, "application/json; charset=UTF-8", body)))) == comparable(streamed)
    assert streamed.finish_reason == "tool_use"
    assert streamed.usage == Usage(input=10, reasoning=3, output=7)
    assert [call.args for call in streamed.message().calls] == [
        '{"city":"Zürich","n":12345678901234567890}',
        '{"city":"Bern"}',
    ]


@pytest.mark.requirement("provider.stream.incremental")
async def test_text_and_thoughts_stream_with_one_finish() -> None:
    chunks = await chunks_of(sse(*TURN))
    assert chunks[:2] == [ThinkingDelta("Let me "), ThinkingDelta("see.")]
    assert [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)] == ["Größe: ", "3 m"]
    assert [chunk for chunk in chunks if isinstance(chunk, Finish)] == [chunks[-1]]


@pytest.mark.requirement("provider.stream.cut")
async def test_stream_without_a_finish_reason_is_a_server_error() -> None:
    error = await failure(sse(*TURN[:3]))
    assert (error.cls, error.retryable) == ("server", True)
    whole = sse(*TURN)[0].body
    error = await failure(replay((200, "text/event-stream", whole[: len(whole) - 3])))
    assert error.cls == "server"


@pytest.mark.requirement("provider.stream.cut")
async def test_answer_that_finishes_with_empty_text_is_completed_turn() -> None:
    read = await ask(sse(answer()))
    assert (read.text, read.finish_reason) == ("", "end_turn")


@pytest.mark.parametrize(
    ("upstream", "canonical"),
    [
        ("STOP", "end_turn"),
        ("MAX_TOKENS", "max_tokens"),
        ("SAFETY", "refusal"),
        ("PROHIBITED_CONTENT", "refusal"),
        ("RECITATION", "refusal"),
        ("MALFORMED_FUNCTION_CALL", "malformed_function_call"),
        ("UNEXPECTED_TOOL_CALL", "unexpected_tool_call"),
        ("LANGUAGE", "language"),
        ("FINISH_REASON_UNSPECIFIED", None),
    ],
)
@pytest.mark.requirement("provider.stream.finish_reason")
async def test_finish_reasons_become_lowercase_tokens(upstream: str, canonical: str | None) -> None:
    assert (await ask(sse(answer({"text": "x"}, finish=upstream)))).finish_reason == canonical


@pytest.mark.requirement("provider.stream.finish_reason")
async def test_a_prompt_that_was_blocked_is_a_refusal_without_text() -> None:
    read = await ask(sse({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}}))
    assert (read.text, read.finish_reason, read.usage.input) == ("", "refusal", 4)


@pytest.mark.requirement("provider.stream.images")
async def test_generated_images_return_with_their_signature() -> None:
    inline = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0="}, "thoughtSignature": "aW1n"}
    message = (await ask(sse(answer({"text": "Here:"}, inline)))).message()
    assert message.parts[:2] == (Text("Here:"), Image("image/png", data="iVBORw0="))
    transport = RecordedTransport(sse(answer({"text": "ok"})))
    await collect(Google(transport=transport), ModelRequest(NEW, [User.of("Draw"), message]))
    assert json.loads(transport.sent[0].body)["contents"][1]["parts"] == [{"text": "Here:"}, inline]


@pytest.mark.requirement("provider.tools.executed", "provider.extra.round_trip")
async def test_code_that_model_ran_is_recorded_and_replayed_in_place() -> None:
    parts = [
        {"text": "Running."},
        {"executableCode": {"language": "PYTHON", "code": "print(6*7)", "id": "x1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "42\n", "id": "x1"}},
        {"text": "It is 42."},
    ]
    message = (await ask(sse(answer(parts[0], parts[1], finish=None), answer(*parts[2:])))).message()
    [ran] = [part for part in message.parts if isinstance(part, ProviderCall)]
    assert (ran.id, ran.name, ran.status) == ("x1", "code_execution", "completed")
    assert body_of(ModelRequest(NEW, [User.of("Hi"), message]))["contents"][1]["parts"] == parts

    failed = {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "boom"}}
    message = (await ask(sse(answer({"executableCode": {"code": "1/0"}}, failed)))).message()
    assert [part.status for part in message.parts if isinstance(part, ProviderCall)] == ["failed"]

    message = (await ask(sse(answer({"executableCode": {"code": "1/0"}}, finish="MAX_TOKENS")))).message()
    assert [part.status for part in message.parts if isinstance(part, ProviderCall)] == ["in_progress"]


async def test_signature_at_the_end_of_a_text_stays_there() -> None:
    parts = [{"text": "The capital"}, {"text": " is Paris", "thoughtSignature": "c2ln"}, {"text": "."}]
    message = (await ask(sse(*(answer(part, finish=None) for part in parts[:2]), answer(parts[2])))).message()
    assert message.text == "The capital is Paris."
    assert body_of(ModelRequest(NEW, [User.of("Hi"), message]))["contents"][1]["parts"] == parts


async def test_parts_without_a_neutral_form_go_back_as_they_came() -> None:
    audio = {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}}
    message = (await ask(sse(answer(audio)))).message()
    assert isinstance(message.parts[0], Opaque)
    transport = RecordedTransport(sse(answer({"text": "ok"})))
    await collect(Google(transport=transport), ModelRequest(NEW, [User.of("Say it"), message]))
    assert json.loads(transport.sent[0].body)["contents"][1]["parts"] == [audio]


@pytest.mark.requirement("provider.stream.tool_calls")
async def test_call_has_upstream_id_and_none_where_there_is_none() -> None:
    with_id: dict[str, Any] = {"functionCall": {"name": "a", "args": {}, "id": "up1"}}
    read = await ask(sse(answer(with_id, {"functionCall": {"name": "b"}})))
    assert [(call.id, call.name, call.args) for call in read.message().calls] == [("up1", "a", "{}"), ("", "b", "{}")]


@pytest.mark.requirement("provider.usage.mapping")
async def test_cached_tokens_are_part_of_prompt_and_not_counted_twice() -> None:
    metadata = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 80,
        "toolUsePromptTokenCount": 7,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 5,
        "totalTokenCount": 132,
    }
    read = await ask(sse(answer({"text": "x"}, usageMetadata=metadata)))
    assert read.usage == Usage(input=107, cached=80, reasoning=5, output=25)
    del metadata["candidatesTokenCount"]
    read = await ask(sse(answer({"text": "x"}, usageMetadata=metadata)))
    assert read.usage.output == 25


@pytest.mark.parametrize(
    ("metadata", "usage"),
    [
        (b"null", Usage()),
        (b'{"promptTokenCount":null,"candidatesTokenCount":-4,"thoughtsTokenCount":"many"}', Usage()),
        (b'{"promptTokenCount":3.0,"cachedContentTokenCount":9}', Usage(input=3, cached=3)),
        (b'{"promptTokenCount":1e999}', Usage()),
    ],
)
@pytest.mark.requirement("provider.usage.robust")
async def test_nonsensical_counts_are_zero_and_do_not_fail_the_turn(metadata: bytes, usage: Usage) -> None:
    body = b'data: {"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":"STOP"}],"usageMetadata":%b}\n\n'
    read = await ask(replay((200, "text/event-stream", body % metadata)))
    assert (read.text, read.usage) == ("x", usage)
    assert (await ask(sse(answer({"text": "x"})))).usage == Usage()


def error_body(code: int, status: str, message: str, *details: dict[str, Any]) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "status": status, "details": details}}).encode()


ERRORS = [
    (429, "RESOURCE_EXHAUSTED", "Quota exceeded", "rate_limit"),
    (503, "UNAVAILABLE", "The model is overloaded.", "overloaded"),
    (500, "INTERNAL", "An internal error has occurred", "server"),
    (400, "INVALID_ARGUMENT", "The input token count (2000000) exceeds the maximum", "context_window"),
    (400, "INVALID_ARGUMENT", 'Unknown name "x"', "invalid_request"),
    (401, "UNAUTHENTICATED", "Missing credentials", "auth"),
    (403, "PERMISSION_DENIED", "No access", "auth"),
]


@pytest.mark.parametrize(("status", "code", "message", "cls"), ERRORS)
@pytest.mark.requirement("provider.error.classes")
async def test_failures_have_their_class_before_and_inside_a_stream(
    status: int, code: str, message: str, cls: str
) -> None:
    body = error_body(status, code, message)
    before = await failure(replay((status, "application/json", body)))
    begun = sse(answer({"text": "Hel"}, finish=None))[0].body
    inside = await failure(replay((200, "text/event-stream", begun + b"data: " + body + b"\n\n")))
    for error in (before, inside):
        assert (error.cls, error.status, error.code) == (cls, status, code)
        assert message in error.message


@pytest.mark.requirement("provider.error.classes", "provider.request.key_secrecy")
async def test_wrong_key_is_an_auth_error_without_the_key() -> None:
    reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    body = error_body(400, "INVALID_ARGUMENT", f"API key {KEY} not valid.", reason)
    error = await failure(replay((400, "application/json", body)))
    assert error.cls == "auth"
    assert KEY not in f"{error}{error!r}{error.message}{error.code}"


@pytest.mark.requirement("provider.error.classes")
async def test_the_retry_delay_in_the_details_is_kept() -> None:
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
    error = await failure(replay((429, "application/json", error_body(429, "RESOURCE_EXHAUSTED", "Slow", delay))))
    assert (error.cls, error.retry_after_s, error.retryable) == ("rate_limit", 34.5, True)


async def test_answer_that_is_no_json_is_error_of_class_server() -> None:
    assert (await failure(replay((200, "text/event-stream", b"data: <html>\n\n")))).cls == "server"
    assert (await failure(replay((200, "application/json", b"<html>")))).cls == "server"


class StandIn:
    """A loopback server that gives every request the same recorded answer and keeps what it was sent."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.url = ""
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()
        self.hang = False

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        assert length is not None
        self.paths.append(head.split(" ")[1])
        self.bodies.append(json.loads(await reader.readexactly(int(length[1]))))
        self.asked.set()
        if self.hang:
            await reader.read()
        else:
            kind, body = self.exchange.headers["content-type"], self.exchange.body
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode() + body)
            await writer.drain()
        writer.close()
        self.closed.set()


@asynccontextmanager
async def serving(exchange: Exchange) -> AsyncGenerator[StandIn]:
    stand_in = StandIn(exchange)
    server = await asyncio.start_server(stand_in, "127.0.0.1", 0)
    async with server:
        stand_in.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield stand_in


def sdk(url: str) -> Any:
    with warnings.catch_warnings():
        # The package's own source has an invalid escape, reported when it is compiled for the first time.
        warnings.simplefilter("ignore")
        from google import genai
    client: Any = genai.Client(api_key=KEY, http_options=genai.types.HttpOptions(base_url=url, api_version="v1beta"))
    return client


@pytest.mark.parametrize(
    "file",
    [
        *(f"streams/google/{name}" for name in ("text_in_pieces", "tool_rounds", "web_search")),
        *recorded(f"google/google_model_{name}" for name in ("stream", "iter_stream", "web_search_tool_stream")),
    ],
)
@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
async def test_official_sdk_reads_and_sends_the_same_bytes(file: str) -> None:
    config = {
        "system_instruction": "You are a helpful chatbot.",
        "temperature": 0.25,
        "max_output_tokens": 500,
        "top_k": 5,
        "stop_sequences": ["END"],
        "thinking_config": {"include_thoughts": True, "thinking_level": "LOW"},
        "tools": [
            {
                "function_declarations": [
                    {
                        "name": "get_weather",
                        "description": "Weather of a city.",
                        "parameters_json_schema": json.loads(bytes(WEATHER.parameters)),
                    }
                ]
            }
        ],
        "tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["get_weather"]}},
    }
    request = ModelRequest(
        NEW,
        [User.of("What is the capital of France?")],
        system="You are a helpful chatbot.",
        tools=[WEATHER],
        tool_choice=("tool", "get_weather"),
        reasoning=30,
        max_output_tokens=500,
        temperature=0.25,
        top_k=5,
        stop=["END"],
    )
    async with serving(exchange(file)) as stand_in:
        client = sdk(stand_in.url)
        stream = await client.aio.models.generate_content_stream(
            model=NEW, contents="What is the capital of France?", config=config
        )
        theirs: list[Any] = [piece async for piece in stream]
        await client.aio.aclose()
        client.close()
        transport = AiohttpTransport()
        ours = await collect(Google(transport=transport, base_url=stand_in.url, api_key=KEY), request)
        await transport.aclose()
    parts: list[Any] = []
    for piece in theirs:
        parts += piece.candidates[0].content.parts or []
    assert ours.text == "".join(part.text for part in parts if part.text and not part.thought)
    assert [(call.name, json.loads(call.args)) for call in ours.message().calls] == [
        (part.function_call.name, part.function_call.args) for part in parts if part.function_call
    ]
    usage = theirs[-1].usage_metadata
    assert ours.usage.input == usage.prompt_token_count + (usage.tool_use_prompt_token_count or 0)
    assert ours.usage.input + ours.usage.output == usage.total_token_count
    assert stand_in.paths[0] == stand_in.paths[1]
    theirs_sent, ours_sent = stand_in.bodies
    # The SDK gives the system instruction a role, which the API does not read.
    del theirs_sent["systemInstruction"]["role"]
    assert ours_sent == camel(theirs_sent)


def camel(value: Any) -> Any:
    """The API reads both spellings of a field; the SDK mixes them."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {re.sub(r"_([a-z])", lambda found: found[1].upper(), key): camel(fields[key]) for key in fields}
    return [camel(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


@pytest.mark.requirement("provider.stream.abort")
async def test_aborting_closes_the_connection_while_waiting_for_the_first_byte() -> None:
    async with serving(sse(answer({"text": "late"}))[0]) as stand_in:
        stand_in.hang = True
        transport = AiohttpTransport()
        provider = Google(transport=transport, base_url=stand_in.url, api_key=KEY)
        task = asyncio.create_task(collect(provider, ModelRequest(NEW, [User.of("Hi")])))
        async with asyncio.timeout(120):
            await stand_in.asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await stand_in.closed.wait()
        await transport.aclose()


@pytest.mark.requirement("provider.family.available")
async def test_given_models_come_first_with_the_shorter_timeout() -> None:
    transport = RecordedTransport(sse(answer({"text": "ok"})))
    provider = Google(transport=transport, models=["gemini-2.5-pro", "gemini-next"], limits=TimeLimits(total_s=5))
    assert [(model.vendor_id, model.context_window_tokens) for model in provider.models()] == [
        ("gemini-2.5-pro", 1_048_576),
        ("gemini-next", None),
    ]
    await collect(provider, ModelRequest("", [User.of("Hi")]))
    await provider.aclose()
    assert "/models/gemini-2.5-pro:" in transport.sent[0].url
    assert transport.sent[0].limits.total_s == 5
    assert not transport.closed
