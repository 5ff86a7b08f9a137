"""Claude on Bedrock beside Claude on Anthropic's own API: the same requests, answers and errors in another envelope."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from aiohttp import web
from anthropic_kit import OURS, RECORDED, answered
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from loopback import listening
from traffic import exchange, recorded
from weftline.errors import WeftlineError
from weftline.messages import Assistant, Image, Opaque, Text, Thinking, ToolCall, ToolResult, ToolResults, User
from weftline.net.sse import SseParser
from weftline.providers.anthropic.bedrock import Bedrock
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.assemble import Assembler, collect
from weftline.providers.aws import Credentials, FrameDecoder, signed
from weftline.providers.base import (
    Chunk,
    Finish,
    ModelRequest,
    OutputSchema,
    Provider,
    ProviderError,
    TextDelta,
    ToolSpec,
    UsageUpdate,
)
from weftline.providers.catalog import build_catalog
from weftline.providers.families import ProviderSettings
from weftline.providers.listing import every_model
from weftline.testing.recordings import Exchange, RecordedTransport, replay

EVENT_STREAM = "application/vnd.amazon.eventstream"
KEYS = "AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
CITY = OutputSchema("city", Raw(b'{"type":"object","properties":{"city":{"type":"string"}}}'))
LOOKUP = ToolSpec("look.up", "looks it up", Raw(b'{"type":"object"}'))


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    encoded = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 16 + len(encoded) + len(payload), len(encoded))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + encoded + payload
    return message + struct.pack(">I", zlib.crc32(message))


def chunk_frame(event: bytes) -> bytes:
    headers = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, json.dumps({"bytes": base64.b64encode(event).decode(), "p": "abcdefgh"}).encode())


def exception_frame(kind: str, message: str) -> bytes:
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return frame(headers, json.dumps({"message": message}).encode())


def framed(replayed: Exchange) -> bytes:
    """An answer of Anthropic's API as Bedrock would send it."""
    return b"".join(chunk_frame(event) for event in stream_events(replayed))


def stream_events(replayed: Exchange) -> list[bytes]:
    if not replayed.headers["content-type"].startswith("application/json"):
        return [event.data for event in SseParser().feed(replayed.body)]
    message = json.loads(replayed.body)
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**message, "content": []}}]
    for index, content in enumerate(message["content"]):
        events += [
            {"type": "content_block_start", "index": index, "content_block": content},
            {"type": "content_block_stop", "index": index},
        ]
    delta = {"stop_reason": message["stop_reason"]}
    metrics = {"inputTokenCount": 1, "outputTokenCount": 1}
    events += [
        {"type": "message_delta", "delta": delta, "usage": message["usage"]},
        {"type": "message_stop", "amazon-bedrock-invocationMetrics": metrics},
    ]
    return [msgspec.json.encode(event) for event in events]


def events(*made: dict[str, Any]) -> bytes:
    return b"".join(chunk_frame(json.dumps(event).encode()) for event in made)


def answer(*blocks: dict[str, Any], stop: str = "end_turn") -> list[Exchange]:
    message = {"type": "message", "content": blocks, "stop_reason": stop, "usage": {"output_tokens": 2}}
    plain = replay((200, "application/json", json.dumps(message).encode()))[0]
    return replay((200, EVENT_STREAM, framed(plain)))


def ask(model: str = MODEL, **fields: Any) -> ModelRequest:
    return ModelRequest(model, fields.pop("messages", [User.of("hi")]), **fields)


def bedrock(
    exchanges: list[Exchange], *, cuts: list[int] | None = None, api_key: str = KEYS, **options: Any
) -> Bedrock:
    return Bedrock(transport=RecordedTransport(exchanges, cuts=cuts), api_key=api_key, region="us-east-1", **options)


def outcome(result: Assembler) -> tuple[Any, ...]:
    """What an answer says, but for the platform that it is from."""
    message = msgspec.json.encode(result.message()).replace(b'"provider":"bedrock"', b'"provider":"anthropic"')
    return message, result.usage, result.finish_reason


async def failure_of(provider: Provider, *, into: list[Chunk] | None = None) -> ProviderError:
    try:
        async for chunks in provider.stream(ask()):
            if into is not None:
                into += chunks
    except ProviderError as error:
        return error
    raise AssertionError("the call did not fail")


# The signature


@pytest.mark.parametrize(
    ("method", "query", "headers", "body", "signature"),
    [
        ("GET", "", {}, b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "", {}, b"", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "GET",
            "?Param2=value2&Param1=value1",
            {},
            b"",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            "POST",
            "",
            {"Content-Type": "application/x-www-form-urlencoded"},
            b"Param1=value1",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
    ],
)
def test_signatures_are_those_of_amazons_published_examples(
    method: str, query: str, headers: dict[str, str], body: bytes, signature: str
) -> None:
    sent = signed(
        method,
        f"https://example.amazonaws.com/{query}",
        headers,
        body,
        credentials=Credentials(*KEYS.split(":")),
        region="us-east-1",
        service="service",
        now=datetime(2015, 8, 30, 12, 36, tzinfo=UTC),
    )
    names = "content-type;host;x-amz-date" if headers else "host;x-amz-date"
    assert sent["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        f"SignedHeaders={names}, Signature={signature}"
    )


class Server:
    """Bedrock on the loopback: checks the signature of what arrives and answers with frames."""

    def __init__(self, replayed: Exchange) -> None:
        self.body = framed(replayed)
        self.paths: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        got = request.headers["authorization"]
        names = got.partition("SignedHeaders=")[2].partition(",")[0].split(";")
        access_key, secret = KEYS.split(":")
        expected = signed(
            request.method,
            f"http://{request.headers['host']}{request.raw_path}",
            {name: request.headers[name] for name in names if name not in ("host", "x-amz-date")},
            body,
            credentials=Credentials(access_key, secret),
            region="eu-central-1",
            service="bedrock",
            now=datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC),
        )
        if got != expected["authorization"]:
            headers = {"x-amzn-errortype": "InvalidSignatureException"}
            return web.json_response({"message": "The signature does not match."}, status=403, headers=headers)
        self.paths.append(request.raw_path)
        return web.Response(body=self.body, content_type=EVENT_STREAM)


@asynccontextmanager
async def serving(replayed: Exchange) -> AsyncGenerator[tuple[Server, str]]:
    server = Server(replayed)
    app = web.Application()
    app.router.add_post("/{tail:.*}", server.handle)
    async with listening(app) as url:
        yield server, url


@pytest.mark.requirement("provider.family.bedrock")
@pytest.mark.parametrize(("file", "number"), [*answered(OURS), *recorded(answered(RECORDED))])
async def test_anthropic_over_a_socket_gives_message_usage_and_stop(file: str, number: int) -> None:
    replayed = exchange(file, number)
    theirs = await collect(Anthropic(transport=RecordedTransport([replayed]), api_key=""), ask())
    async with serving(replayed) as (server, url):
        provider = Bedrock(base_url=url, api_key=f"{KEYS}:session", region="eu-central-1")
        try:
            ours = await collect(provider, ask())
        finally:
            await provider.aclose()
    assert outcome(ours) == outcome(theirs)
    assert server.paths == [f"/model/{MODEL}/invoke-with-response-stream"]


async def test_signed_request_is_the_sent_one() -> None:
    arn = "arn:aws:bedrock:eu-central-1:123456789012:application-inference-profile/a b"
    async with serving(exchange("streams/anthropic/two_tools_in_turn")) as (server, url):
        for key in (KEYS, "AKIDEXAMPLE:wrong"):
            provider = Bedrock(base_url=url, api_key=key, region="eu-central-1")
            try:
                if key == KEYS:
                    await collect(provider, ask(arn))
                else:
                    assert (await failure_of(provider)).cls == "auth"
            finally:
                await provider.aclose()
    (path,) = server.paths
    assert path.startswith("/model/arn:aws:bedrock:eu-central-1:123456789012:application-inference-profile%2Fa%20b/")


# Frames


@given(data=st.data())
@pytest.mark.requirement("provider.family.bedrock")
def test_any_split_of_the_bytes_gives_the_same_message(data: st.DataObject) -> None:
    body = framed(exchange("streams/anthropic/redacted_thinking"))
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=40))
    exchanges = replay((200, EVENT_STREAM, body))

    async def both() -> None:
        cut, whole = bedrock(exchanges, cuts=cuts), bedrock(exchanges)
        assert outcome(await collect(cut, ask())) == outcome(await collect(whole, ask()))

    asyncio.run(both())


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_frame_with_flipped_bit_is_never_taken_for_whole(at: int, bit: int) -> None:
    frames = bytearray(events({"type": "ping"}) + exception_frame("throttlingException", "slow"))
    frames[at % len(frames)] ^= 1 << bit
    with pytest.raises(ProviderError) as raised:
        FrameDecoder().feed(bytes(frames))
    assert raised.value.cls == "server"


def test_event_stream_headers_of_every_type_are_understood() -> None:
    values = [b"\x00", b"\x01", b"\x02a", b"\x03ab", b"\x04abcd", b"\x05abcdefgh", b"\x06\x00\x02ab"]
    values += [b"\x07\x00\x02hi", b"\x08abcdefgh", b"\x09abcdefghijklmnop"]
    headers = b"".join(b"\x02h" + str(index).encode() + value for index, value in enumerate(values))
    prelude = struct.pack(">II", 16 + len(headers), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers
    (got,) = FrameDecoder().feed(message + struct.pack(">I", zlib.crc32(message)))
    assert got == ({"h7": "hi"}, b"")


async def test_answer_that_breaks_off_between_frames_is_an_error() -> None:
    replayed = exchange("streams/anthropic/web_fetch")
    body = framed(replayed)
    for event in reversed(stream_events(replayed)[-2:]):  # that it stopped, and why
        body = body.removesuffix(chunk_frame(event))
    got: list[Chunk] = []
    error = await failure_of(bedrock(replay((200, EVENT_STREAM, body))), into=got)
    assert (error.cls, error.retryable) == ("server", True)
    assert any(isinstance(chunk, TextDelta) for chunk in got)


# Requests

CALLED = [
    User((Text("What is this?"), Image("image/png", base64.b64encode(b"pixel").decode()))),
    Assistant((Thinking("hm", signature="c2ln", provider="bedrock"), ToolCall("toolu_1", "look.up", "{}", "bedrock"))),
    ToolResults((ToolResult("toolu_1", "look.up", (Text("a dot"),)),)),
]


@pytest.mark.requirement("provider.family.bedrock")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        *({"reasoning": level} for level in (0, 1, 30, 50, 80, 100)),
        {"reasoning": 80, "max_output_tokens": 2_000},
        {"output_schema": CITY},
        {"output_schema": CITY, "reasoning": 80},
        {"output_schema": CITY, "tools": [LOOKUP]},
        {"output_schema": CITY, "tools": [LOOKUP], "tools_disabled": True},
        {"tools": [LOOKUP], "tool_choice": ("tool", "look.up"), "reasoning": 50},
        {"system": "Be brief.", "tools": [LOOKUP], "messages": CALLED, "temperature": 0.5, "stop": ["END"]},
    ],
)
@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        ("claude-sonnet-4-5", MODEL),
        ("claude-3-5-sonnet-20241022", "anthropic.claude-3-5-sonnet-20241022-v2:0"),
        ("claude-opus-4-7", "global.anthropic.claude-opus-4-7-v1"),
        ("claude-sonnet-5", "eu.anthropic.claude-sonnet-5"),
    ],
)
def test_bedrock_body_is_that_of_the_messages_api(own: str, theirs: str, fields: dict[str, Any]) -> None:
    expected = json.loads(Anthropic(api_key="", native_schemas=False).native_request(ask(own, **dict(fields))).body)
    sent = bedrock([]).native_request(ask(theirs, **dict(fields)))
    body = json.loads(sent.body)
    assert (expected.pop("model"), expected.pop("stream")) == (own, True)
    assert body.pop("anthropic_version") == "bedrock-2023-05-31"
    assert body == expected
    assert sent.url == f"https://bedrock-runtime.us-east-1.amazonaws.com/model/{theirs}/invoke-with-response-stream"


@pytest.mark.requirement("provider.family.bedrock")
def test_the_thinking_budget_and_the_report_are_in_the_request() -> None:
    thinking = json.loads(bedrock([]).native_request(ask(reasoning=80)).body)
    assert thinking["thinking"] == {"type": "enabled", "budget_tokens": 8_000}
    report = json.loads(bedrock([]).native_request(ask(output_schema=CITY)).body)
    assert report["tool_choice"]["name"] == "final_report"
    assert [tool["name"] for tool in report["tools"]] == ["final_report"]


def test_output_schema_is_sent_only_when_requested() -> None:
    body = json.loads(bedrock([], native_schemas=True).native_request(ask(output_schema=CITY)).body)
    assert body["output_config"]["format"]["type"] == "json_schema"
    assert "tools" not in body


def test_betas_go_into_the_body() -> None:
    sent = bedrock([], betas=["context-1m-2025-08-07"]).native_request(ask())
    assert json.loads(sent.body)["anthropic_beta"] == ["context-1m-2025-08-07"]
    assert "anthropic-beta" not in sent.headers_redacted


@pytest.mark.requirement("provider.family.bedrock")
async def test_the_report_arrives_as_text_and_never_as_a_call() -> None:
    report = {"type": "tool_use", "id": "toolu_1", "name": "final_report", "input": {"city": "Paris"}}
    provider = bedrock(answer(report, stop="tool_use"))
    chunks = [chunk async for some in provider.stream(ask(output_schema=CITY)) for chunk in some]
    said = [chunk for chunk in chunks if not isinstance(chunk, UsageUpdate)]
    assert said == [TextDelta('{"city":"Paris"}'), Finish("end_turn")]


@pytest.mark.requirement("provider.family.bedrock")
@pytest.mark.parametrize("stop", ["end_turn", "max_tokens", "stop_sequence", "refusal"])
async def test_stop_reasons_are_those_of_the_messages_api(stop: str) -> None:
    assert (await collect(bedrock(answer({"type": "text", "text": "a"}, stop=stop)), ask())).finish_reason == stop


def test_thoughts_move_between_platforms_and_what_anthropic_ran_does_not() -> None:
    ran = Opaque("anthropic", Raw(b'{"type":"server_tool_use","id":"s","name":"web_search","input":{}}'))
    messages = [
        User.of("hi"),
        Assistant((Thinking("hm", signature="c2ln", provider="anthropic"), ran, Text("Hello"))),
        User.of("go"),
    ]
    body = json.loads(bedrock([], cache=False).native_request(ask(messages=messages)).body)
    assert [block["type"] for block in body["messages"][1]["content"]] == ["thinking", "text"]


async def test_a_block_of_an_unknown_kind_goes_back_unchanged() -> None:
    unknown = {"type": "dream", "of": "sheep"}
    message = (await collect(bedrock(answer(unknown, {"type": "text", "text": "a"})), ask())).message()
    sent = bedrock([]).native_request(ask(messages=[User.of("hi"), message, User.of("go")]))
    assert json.loads(sent.body)["messages"][1]["content"][0] == unknown


# Errors


@pytest.mark.requirement("provider.family.bedrock")
@pytest.mark.parametrize(
    ("status", "code", "message", "cls", "anthropic"),
    [
        (429, "ThrottlingException", "Too many requests", "rate_limit", (429, "rate_limit_error")),
        (400, "ServiceQuotaExceededException", "Quota", "rate_limit", (429, "rate_limit_error")),
        (503, "ServiceUnavailableException", "Try later", "overloaded", (529, "overloaded_error")),
        (429, "ModelNotReadyException", "Not ready", "overloaded", (529, "overloaded_error")),
        (500, "InternalServerException", "Oops", "server", (500, "api_error")),
        (424, "ModelErrorException", "Oops", "server", (500, "api_error")),
        (408, "ModelTimeoutException", "Slow", "timeout", (408, "timeout_error")),
        (403, "AccessDeniedException", "No access", "auth", (403, "permission_error")),
        (403, "UnrecognizedClientException", "Who?", "auth", (401, "authentication_error")),
        (400, "ValidationException", "Input is too long for requested model.", "context_window", (400, "")),
        (400, "ValidationException", "prompt is too long: 9 tokens > 8 maximum", "context_window", (400, "")),
        (400, "ValidationException", "max_tokens: wrong", "invalid_request", (400, "invalid_request_error")),
        (404, "ResourceNotFoundException", "No such model", "invalid_request", (404, "not_found_error")),
    ],
)
async def test_refusal_has_class_that_it_has_at_anthropics_own(
    status: int, code: str, message: str, cls: str, anthropic: tuple[int, str]
) -> None:
    headers = {"x-amzn-errortype": f"{code}:http://internal.amazon.com/coral/", "retry-after": "7"}
    body = json.dumps({"message": message}).encode()
    error = await failure_of(bedrock([Exchange("POST", "", b"", status, headers, body)]))
    assert (error.cls, error.status, error.code) == (cls, status, code)
    assert error.message.startswith(message)
    assert error.retry_after_s == 7.0
    own_status, kind = anthropic
    own_body = json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    own = Anthropic(transport=RecordedTransport(replay((own_status, "application/json", own_body))), api_key="")
    theirs = await failure_of(own)
    assert (theirs.cls, theirs.retryable) == (error.cls, error.retryable)


@pytest.mark.requirement("provider.family.bedrock")
@pytest.mark.parametrize(
    ("kind", "message", "cls"),
    [
        ("throttlingException", "slow down", "rate_limit"),
        ("serviceUnavailableException", "later", "overloaded"),
        ("internalServerException", "oops", "server"),
        ("modelStreamErrorException", "oops", "server"),
        ("modelTimeoutException", "slow", "timeout"),
        ("validationException", "Input is too long for requested model.", "context_window"),
        ("validationException", "wrong", "invalid_request"),
    ],
)
async def test_exception_in_stream_is_classified_after_what_came_before_it(kind: str, message: str, cls: str) -> None:
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hel"}}
    got: list[Chunk] = []
    body = events(start) + exception_frame(kind, message)
    error = await failure_of(bedrock(replay((200, EVENT_STREAM, body))), into=got)
    assert (error.cls, error.code, error.message) == (cls, kind, message)
    assert got == [TextDelta("Hel")]


async def test_errors_inside_an_anthropic_stream_are_classified() -> None:
    overloaded = events({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    assert (await failure_of(bedrock(replay((200, EVENT_STREAM, overloaded))))).cls == "overloaded"
    headers = {":message-type": "error", ":error-code": "InternalServerException", ":error-message": "oops"}
    error = await failure_of(bedrock(replay((200, EVENT_STREAM, frame(headers, b"")))))
    assert (error.cls, error.message) == ("server", "oops")
    garbled = frame({":message-type": "event", ":event-type": "chunk"}, b'{"bytes":"?"}')
    assert (await failure_of(bedrock(replay((200, EVENT_STREAM, garbled))))).cls == "server"


async def test_no_secret_is_in_error_or_in_what_is_shown() -> None:
    body = json.dumps({"Message": f"canonical request: token {KEYS.split(':')[1]} my-session"}).encode()
    provider = bedrock(replay((403, "application/json", body)), api_key=f"{KEYS}:my-session")
    error = await failure_of(provider)
    assert (error.cls, error.message) == ("auth", "canonical request: token [redacted] [redacted]")
    assert provider.native_request(ask()).headers_redacted["authorization"] == "[redacted]"


# Keys, regions, the catalog


async def sent_headers(**options: Any) -> dict[str, str]:
    transport = RecordedTransport(answer({"type": "text", "text": "a"}))
    await collect(Bedrock(transport=transport, **options), ask())
    return transport.sent[0].headers


async def test_key_without_colon_is_sent_as_bearer_token() -> None:
    headers = await sent_headers(api_key="bedrock-key", region="us-east-1")
    assert headers["authorization"] == "Bearer bedrock-key"


async def test_keys_and_region_come_from_environment_unless_key_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "session",
        "AWS_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(name, value)
    headers = await sent_headers()
    assert headers["x-amz-security-token"] == "session"
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKID/")
    assert "/eu-west-1/bedrock/aws4_request" in headers["authorization"]
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    assert "x-amz-security-token" not in await sent_headers()
    assert "authorization" not in await sent_headers(api_key="")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bearer")
    assert (await sent_headers())["authorization"] == "Bearer bearer"


async def test_region_of_amazon_address_is_one_that_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    address = "https://bedrock-runtime.ap-south-1.amazonaws.com/"
    assert "/ap-south-1/bedrock/" in (await sent_headers(api_key=KEYS, base_url=address))["authorization"]


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: Bedrock(api_key=KEYS), "region is missing"),
        (lambda: Bedrock(api_key=KEYS, region="evil.example/#"), "is not a region name"),
        (lambda: Bedrock(api_key="AKID:", region="us-east-1"), "ACCESS_KEY:SECRET"),
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], Bedrock], fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    with pytest.raises(ValueError, match=fault):
        make()


async def test_a_model_id_cannot_lead_to_another_address() -> None:
    with pytest.raises(ProviderError, match="There is no model"):
        await collect(bedrock([]), ask(".."))


async def test_the_family_is_offered_by_the_catalog() -> None:
    transport = RecordedTransport(answer({"type": "text", "text": "Hello"}))
    settings = ProviderSettings(
        name="aws", family="bedrock", api_key="env:BEDROCK_KEYS", options={"region": "eu-central-1"}
    )
    catalog = build_catalog([settings], transport=transport, environ={"BEDROCK_KEYS": KEYS})
    model = catalog.resolve(f"aws:{MODEL}")
    assert (await collect(model.provider, ask(model.vendor_id))).text == "Hello"
    assert model.entry.provider == "bedrock"
    with pytest.raises(WeftlineError, match="is not a region name"):
        build_catalog(
            [ProviderSettings(name="aws", family="bedrock", api_key=KEYS, options={"region": "?"})], transport=transport
        )


async def test_claude_models_of_region_are_listed_with_signed_request() -> None:
    row = {"modelId": "anthropic.claude-x-v1:0", "modelName": "Claude X", "inputModalities": ["TEXT", "IMAGE"]}
    transport = RecordedTransport(replay((200, "application/json", json.dumps({"modelSummaries": [row]}).encode())))
    (model,) = [one async for one in every_model(Bedrock(transport=transport, api_key=KEYS, region="us-east-1"))]
    assert (model.vendor_id, model.label, model.vision) == ("anthropic.claude-x-v1:0", "Claude X", True)
    (sent,) = transport.sent
    assert sent.url == "https://bedrock.us-east-1.amazonaws.com/foundation-models?byProvider=anthropic"
    assert sent.headers["authorization"].startswith("AWS4-HMAC-SHA256 ")


def test_attachment_at_an_address_becomes_words_for_bedrock() -> None:
    parts = (Image("image/png", url="https://example.com/cat.png"), Image("image/png", data="aGk="), Text("See?"))
    body = Bedrock(api_key="key", region="eu-central-1").native_request(
        ModelRequest("claude-sonnet-4-5", [User(parts)])
    )
    content = json.loads(body.body)["messages"][0]["content"]
    assert content[0]["text"] == (
        "[An attachment (image/png) at https://example.com/cat.png, which this model cannot fetch.]"
    )
    assert [part["type"] for part in content] == ["text", "image", "text"]
