"""The load generator's HTTP/1.1 connection: one request at a time, and as little parsing as an honest count allows."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

_END = b"0\r\n\r\n"
_LENGTH = b"content-length: "


class Owner(Protocol):
    def answered(self, status: int, body: bytes) -> None:
        """A complete answer with a length."""
        ...

    def streamed(self, data: bytes) -> None:
        """More of a chunked answer, with the chunks' framing still in it."""
        ...

    def stream_ended(self) -> None: ...

    def lost(self) -> None:
        """The connection is gone."""
        ...


class Connection(asyncio.Protocol):
    """Keeps the connection alive. The end of a stream is its last chunk, which no SSE data can look like."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.WriteTransport | None = None
        self._buffer = b""
        self._streaming = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._owner.lost()

    def send(self, request: bytes) -> None:
        if self._transport is None:
            self._owner.lost()
        else:
            self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._streaming:
            self._stream(data)
            return
        buffer = self._buffer = self._buffer + data if self._buffer else data
        head_end = buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        at = buffer.find(_LENGTH, 0, head_end)
        if at < 0:
            self._buffer, self._streaming, self._tail = b"", True, b""
            rest = buffer[head_end + 4 :]
            if rest:
                self._stream(rest)
            return
        at += len(_LENGTH)
        length = int(buffer[at : buffer.find(b"\r\n", at)])
        if len(buffer) < head_end + 4 + length:
            return
        self._buffer = b""
        self._owner.answered(int(buffer[9:12]), buffer[head_end + 4 :])

    def _stream(self, data: bytes) -> None:
        self._owner.streamed(data)
        tail = data[-5:] if len(data) >= 5 else (self._tail + data)[-5:]
        self._tail = tail
        if tail == _END:
            self._streaming = False
            self._owner.stream_ended()
