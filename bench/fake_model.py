"""A model API on the loopback: an OpenAI-chat server that streams ready-made answers, in a process of its own.

Models: `tool` asks for one tool call and then answers in 20 pieces; `loop` asks for a tool call in every turn, after 20
pieces; `paced` answers in 50 pieces that are 20 ms apart.
"""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import uvloop

PACED_CHUNKS = 50
PACE_S = 0.02

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST = b"0\r\n\r\n"


def _event(delta: dict[str, object], *, finish: str | None = None) -> bytes:
    document = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "fake",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def _usage() -> bytes:
    usage: dict[str, object] = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    document: dict[str, object] = {"id": "chatcmpl-1", "model": "fake", "choices": [], "usage": usage}
    return b"data: " + msgspec.json.encode(document) + b"\n\ndata: [DONE]\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _call() -> list[bytes]:
    function = {"name": "add", "arguments": ""}
    start: dict[str, object] = {"tool_calls": [{"index": 0, "id": "call_x", "type": "function", "function": function}]}
    args: dict[str, object] = {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 2, "b": 3}'}}]}
    return [_event(start), _event(args), _event({}, finish="tool_calls"), _usage()]


_TEXT = [_event({"content": f"word{number:02} "}) for number in range(20)]
_ASK = _HEAD + _chunk(b"".join([_event({"role": "assistant"}), *_call()])) + _LAST
_ASK_WITH_TEXT = _HEAD + _chunk(b"".join([_event({"role": "assistant"}), *_TEXT, *_call()])) + _LAST
_ANSWER = _HEAD + _chunk(b"".join([_event({"role": "assistant"}), *_TEXT, _event({}, finish="stop"), _usage()])) + _LAST
_PIECE = _chunk(_event({"content": "word "}))
_PACED_END = _chunk(_event({}, finish="stop") + _usage()) + _LAST


class FakeModel(asyncio.Protocol):
    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer = self._buffer + data if self._buffer else data
        head_end = buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = buffer[:head_end].lower()
        at = head.find(b"content-length: ") + 16
        length = int(head[at:].split(b"\r\n", 1)[0])
        if len(buffer) < head_end + 4 + length:
            return
        self._buffer = b""
        body = buffer[head_end + 4 :]
        if b'"paced"' in body:
            self._write(_HEAD)
            self._pace(PACED_CHUNKS, asyncio.get_running_loop().time())
        elif b'"loop"' in body:
            self._write(_ASK_WITH_TEXT)
        else:
            self._write(_ANSWER if b'"role":"tool"' in body else _ASK)

    def _pace(self, left: int, at: float) -> None:
        if not left:
            self._write(_PACED_END)
            return
        self._write(_PIECE)
        asyncio.get_running_loop().call_at(at + PACE_S, self._pace, left - 1, at + PACE_S)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(FakeModel, "127.0.0.1", 0, backlog=2048)
    print(f"ready {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
