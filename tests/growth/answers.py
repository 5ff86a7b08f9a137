"""What those answer whom the server asks: model APIs, web pages, MCP servers and A2A agents; and what models write."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw

from weftline.events.frames import delta_frames
from weftline.kernel.bodies import note_body
from weftline.kernel.notes import PROVIDER_CALL
from weftline.messages import Image, OutputSchema, ProviderCall, Text, User
from weftline.net.sse import SseParser
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.anthropic.schema import input_schema, report_for
from weftline.providers.assemble import collect
from weftline.providers.aws import FrameDecoder
from weftline.providers.base import ModelRequest, Provider, ProviderError, ToolSpec
from weftline.providers.google.provider import Google
from weftline.providers.google.schema import accepted
from weftline.providers.http_errors import classify
from weftline.providers.names import repaired
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.openai.responses import OpenAIResponses
from weftline.providers.openai.schema import tool_schema
from weftline.providers.openai.thinking import ThinkTags
from weftline.testing.recordings import RecordedTransport, replay
from weftline.text.characters import decoded
from weftline.text.redaction import Redactor
from weftline.tools.a2a import answer_text
from weftline.tools.arguments import InvalidArguments, object_args
from weftline.tools.base import ToolFailed
from weftline.tools.builtin.calculator import calculator
from weftline.tools.builtin.page import page_text
from weftline.tools.client_side import card_description
from weftline.tools.mcp.tools import model_name
from weftline.tools.schema import object_root, object_schema
from weftline.tools.templates import Values, placeholders

from .meter import Maker, Work

Event = dict[str, Any]


def _refused(work: Work) -> Work:
    def run() -> None:
        with suppress(ProviderError, InvalidArguments, ToolFailed, ValueError):
            work()

    return run


def _answered(make: Callable[[RecordedTransport], Provider], model: str) -> Callable[[Sequence[Event | bytes]], Work]:
    """The work of reading an answer that streams these events."""

    def answer(events: Sequence[Event | bytes]) -> Work:
        data = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in events]
        body = b"".join(b"data: " + one + b"\n\n" for one in data)

        async def ask() -> None:
            provider = make(RecordedTransport(replay((200, "text/event-stream", body))))
            message = (await collect(provider, ModelRequest(model, [User.of("hi")]))).message()
            assert message.parts

        return lambda: asyncio.run(ask())

    return answer


_chat = _answered(
    lambda transport: OpenAIChat(profile="openai", transport=transport, base_url="http://x/v1", api_key="k"), "gpt-4o"
)
_responses = _answered(
    lambda transport: OpenAIResponses(transport=transport, base_url="http://x/v1", api_key="k"), "gpt-5"
)
_anthropic = _answered(lambda transport: Anthropic(transport=transport, api_key="k"), "claude-sonnet-4-5")
_google = _answered(lambda transport: Google(transport=transport, api_key="k"), "gemini-3.8-flash")


def _chat_deltas(deltas: Sequence[Event]) -> Work:
    parts = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return _chat([*parts, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, b"[DONE]"])


def _chat_call(index: int, **function: str) -> Event:
    return {"tool_calls": [{"index": index, "id": f"c{index}", "type": "function", "function": function}]}


NO_DELTAS: Sequence[Event] = ()


def _blocks(blocks: Sequence[tuple[Event, Sequence[Event]]]) -> Work:
    message: Event = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "usage": {}}
    events: list[Event] = [{"type": "message_start", "message": message}]
    for index, (start, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}, {"type": "message_stop"}]
    return _anthropic(events)


def _candidates(parts: Sequence[Event]) -> Work:
    events: list[Event] = [{"candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in parts]
    events.append({"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]})
    return _google(events)


def _output_items(deltas: int) -> Work:
    item: Event = {"type": "message", "id": "m", "role": "assistant", "content": []}
    text = "ab" * deltas
    done: Event = {**item, "content": [{"type": "output_text", "text": text, "annotations": []}]}
    delta = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "item_id": "m", "delta": "ab"}
    return _responses(
        [
            {"type": "response.created", "response": {"id": "r"}},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            *[delta] * deltas,
            {"type": "response.output_item.done", "output_index": 0, "item": done},
            {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [done]}},
        ]
    )


def _note(count: int) -> bytes:
    call = ProviderCall("x", "search", "p", input=Raw(msgspec.json.encode({"a": [1] * count})))
    return note_body(call, turn=1)


def _fed(make: Callable[[], Any], pieces: Sequence[Any]) -> Work:
    def work() -> None:
        parser = make()
        for piece in pieces:
            parser.feed(piece)

    return _refused(work)


def _frames(count: int) -> list[bytes]:
    head = struct.pack(">II", 16 + 2, 0)
    frame = head + struct.pack(">I", zlib.crc32(head)) + b"{}"
    data = (frame + struct.pack(">I", zlib.crc32(frame))) * count
    return [data[at : at + 3] for at in range(0, len(data), 3)]


def _nested(levels: int, **leaf: Any) -> Event:
    schema: Event = dict(leaf)
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "allOf": [{"required": ["a"]}]}
    return schema


def _wide(count: int) -> Event:
    members = {f"p{n}": {"anyOf": [{"type": "string"}, {"const": n}], "exclusiveMinimum": 1} for n in range(count)}
    return {"type": "object", "properties": members, "required": [*members], "anyOf": [{"properties": members}]}


def _raw(schema: Event) -> Raw:
    return Raw(msgspec.json.encode(schema))


def _spec(schema: Event) -> ToolSpec:
    # A description of its own, since what is known is not worked out again.
    return ToolSpec("t", "", _raw({**schema, "description": str(id(schema))}))


def _classified(body: bytes, **headers: str) -> Work:
    return lambda: classify(400, body, headers)


def _native(part: Image) -> Work:
    request = ModelRequest("gpt-4o", [User((Text("hi"), part))])
    chat = OpenAIChat(profile="openai", transport=RecordedTransport([]), base_url="http://x/v1", api_key="k")
    google = Google(transport=RecordedTransport([]), api_key="k")
    return lambda: (chat.native_request(request), google.native_request(request))


CASES: dict[str, tuple[int, Maker]] = {
    "chat: text": (500, lambda n: _chat_deltas([{"content": "x"}] * n)),
    "chat: arguments": (
        500,
        lambda n: _chat_deltas([_chat_call(0, name="t", arguments="")] + [_chat_call(0, arguments=" ")] * n),
    ),
    "chat: calls": (120, lambda n: _chat_deltas([_chat_call(i, name="t", arguments="{}") for i in range(n)])),
    "chat: reasoning": (500, lambda n: _chat_deltas([{"reasoning_content": "x"}] * n + [{"content": "y"}])),
    "chat: calls of one read": (
        120,
        lambda n: _chat_deltas(
            [{"tool_calls": [_chat_call(i, name="t", arguments="{}")["tool_calls"][0] for i in range(n)]}]
        ),
    ),
    "chat: a name with every piece": (
        500,
        lambda n: _chat_deltas(
            [{"tool_calls": [{"index": 0, "function": {"name": "t", "arguments": "{}{" + "x" * 500 + "}"}}]}] * n
        ),
    ),
    "chat: details of reasoning": (
        500,
        lambda n: _chat_deltas(
            [
                {"reasoning_details": [{"type": "reasoning.text", "index": i % 1_000, "text": "x" * 999}]}
                for i in range(n)
            ]
            + [{"content": "y"}]
        ),
    ),
    "responses: text": (500, _output_items),
    "anthropic: text": (
        500,
        lambda n: _blocks([({"type": "text", "text": ""}, [{"type": "text_delta", "text": "x"}] * n)]),
    ),
    "anthropic: blocks": (300, lambda n: _blocks([({"type": "text", "text": "x"}, NO_DELTAS)] * n)),
    "anthropic: arguments": (
        500,
        lambda n: _blocks(
            [
                (
                    {"type": "tool_use", "id": "t", "name": "t", "input": {}},
                    [{"type": "input_json_delta", "partial_json": " "}] * n,
                )
            ]
        ),
    ),
    "anthropic: thinking": (
        500,
        lambda n: _blocks(
            [
                ({"type": "thinking", "thinking": ""}, [{"type": "thinking_delta", "thinking": "x"}] * n),
                ({"type": "text", "text": "x"}, []),
            ]
        ),
    ),
    "anthropic: a signature": (
        500,
        lambda n: _blocks(
            [
                (
                    {"type": "thinking", "thinking": "x"},
                    [{"type": "signature_delta", "signature": "x" * 1_000}] * n,
                )
            ]
        ),
    ),
    "anthropic: a block of an unknown kind": (
        500,
        lambda n: _blocks([({"type": "new"}, [{"type": "new_delta", "much": "x" * 1_000}] * n)]),
    ),
    "google: its own tools": (
        400,
        lambda n: _candidates(
            [{"toolCall": {"id": f"t{i}", "toolType": "X"}} for i in range(n)]
            + [{"toolResponse": {"id": f"t{i}"}} for i in reversed(range(n))]
        ),
    ),
    "google: text": (500, lambda n: _candidates([{"text": "x"}] * n)),
    "google: calls": (120, lambda n: _candidates([{"functionCall": {"name": "t", "args": {"a": 1}}}] * n)),
    "think tags: spaces": (20_000, lambda n: _fed(ThinkTags, [" "] * n)),
    "think tags: the beginning of an end": (5_000, lambda n: _fed(ThinkTags, ["<think>x", *["</thin"] * n])),
    "think tags: one piece": (50_000, lambda n: _fed(ThinkTags, ["<think>" + "</think" * n])),
    "events: byte by byte": (5_000, lambda n: _fed(SseParser, [b"d"] * n + [b"\n"])),
    "events: line by line": (6_000, lambda n: _fed(SseParser, [b"data: x\n"] * n)),
    "events: returns": (50_000, lambda n: _fed(SseParser, [b"\r" * n, *[b"\r"] * 100])),
    "events: ids": (6_000, lambda n: _fed(SseParser, [b"id: x\nevent: y\n\n" * n])),
    "frames": (1_000, lambda n: _fed(FrameDecoder, _frames(n))),
    "a secret: escapes of escapes": (20_000, lambda n: lambda: Redactor(["secret-1"]).text("\\" * n)),
    "a secret: spelled over and over": (
        500,
        lambda n: lambda: Redactor(["secret-1"]).text("".join(f"\\u{ord(c):04x}" for c in "secret-1") * n),
    ),
    "a secret: beginnings": (
        50_000,
        lambda n: lambda: Redactor(["&amp;" + "a" * 99]).text(("&am" + "a" * 98 + " ") * (n // 100)),
    ),
    "an error": (20_000, lambda n: _classified(b"prompt input " * n)),
    "an error in JSON": (
        2_000,
        lambda n: _classified(json.dumps({"error": {"message": "input . prompt" * n}}).encode()),
    ),
    "an error with a delay": (20_000, lambda n: _classified(b'"retryDelay" :' * n + b'"1')),
    "a delay": (20_000, lambda n: _classified(b"", **{"retry-after": "Mon, " * n})),
    "a name": (20_000, lambda n: lambda: repaired("é" * n)),
    "an image": (10_000, lambda n: _native(Image("image/png", data="data:x" * n))),
    "the address of an image": (50_000, lambda n: _native(Image("image/png", url="data:" + ";x" * n))),
    "a wide schema": (
        60,
        lambda n: (
            lambda: (
                tool_schema(_spec(_wide(n))),
                accepted(_raw(_wide(n))),
                input_schema(bytes(_spec(_wide(n)).parameters)),
                report_for(OutputSchema("o", _raw(_wide(n))), set()),
                object_schema(_raw(_wide(n))),
            )
        ),
    ),
    "a deep schema": (
        10,
        lambda n: lambda: (tool_schema(_spec(_nested(n))), accepted(_raw(_nested(n))), object_root(_raw(_nested(n)))),
    ),
    "arguments": (50_000, lambda n: _refused(lambda: object_args('{"a":[' + "1," * n + "1]}"))),
    "arguments that are no JSON": (50_000, lambda n: _refused(lambda: object_args('{"a":"' + "\\u00e9" * n))),
    "a template": (20_000, lambda n: lambda: [*placeholders("{{ a.b" * n + "{{" + "a." * n + " " * n)]),
    "a filled template": (1_500, lambda n: lambda: Values({"a": "é/" * n}, {}).url("http://x/{{a}}?{{a}}")),
    "an expression": (10_000, lambda n: _refused(lambda: calculator("(" * n + "1+" * n))),
    "a card": (
        2_000,
        lambda n: (
            lambda: card_description(
                Raw(json.dumps({"name": " x" * n, "skills": [{"name": "s"}] * n}).encode()), fallback="f"
            )
        ),
    ),
    "an A2A answer": (5_000, lambda n: lambda: answer_text({"artifacts": [{"parts": [{"text": "x"}] * n}] * 2})),
    "the name of an MCP tool": (50_000, lambda n: lambda: model_name("s", "é-" * n, taken=set())),
    "a provider's own call": (
        20_000,
        lambda n: lambda: delta_frames(1, PROVIDER_CALL, _note(n), after=0, upto=1),
    ),
    "a page: unclosed tags": (50_000, lambda n: lambda: page_text("<a" * n)),
    "a page: comments": (50_000, lambda n: lambda: page_text("<!--" * n)),
    "a page: boxes": (1_500, lambda n: lambda: page_text("<div>" * n + "</p>" * n)),
    "a page: silence": (5_000, lambda n: lambda: page_text("<svg>" * n + "</b>" * n)),
    "a page: scripts": (50_000, lambda n: lambda: page_text("<script>" + "</scrip" * n)),
    "a page: links": (600, lambda n: lambda: page_text("<a href=../x>y</a>" * n, url="http://x/" + "a/" * 20)),
    "a page: blanks": (100_000, lambda n: lambda: page_text("<p>" + " \n\t" * n)),
    "a page: attributes": (20_000, lambda n: lambda: page_text("<a " + "b=c " * n + ">")),
    "a charset": (
        100_000,
        lambda n: lambda: [decoded(b"a-9" * n, name) for name in ("punycode", "idna", "utf-7", "big5")],
    ),
}
