"""One request and its response on a connection, and the head of the response, which is written at once.

Headers are created here, mostly from trusted values, so a head is checked as a whole rather than header by header.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct, field

from weftline.server.corked import Corked
from weftline.server.heads import STATUS_LINES
from weftline.server.http import DISCONNECT, Scope

_CHUNKED = (b"transfer-encoding", b"chunked")
_CLOSE = (b"connection", b"close")
_TEXT = (b"content-type", b"text/plain; charset=utf-8")
_FAILED = b"Internal Server Error"
_NO_BODY = frozenset({204, 304})
_REST_BYTES = 64 * 1024
"""How much of a request may come after its response, so that the connection can be used for another one."""
_LINE_FEED, _RETURN, _NULL = b"\n\r\0"
"""As integers, since searching bytes for an integer is five times as fast."""


class Exchange(Struct, eq=False):
    """`receive` and `send` are what ASGI calls so. It is a struct as most of them are open streams."""

    scope: Scope
    transport: Corked
    default_headers: list[tuple[bytes, bytes]]
    on_response: Callable[[], object]
    """Called when the response is complete. It also ends the connection unless `keep_alive` says to keep it."""
    keep_alive: bool = True
    waiting_for_100_continue: bool = False
    body: bytearray = field(default_factory=bytearray)
    """What has arrived of it and was not received yet."""
    arrived: int = 0
    """How many bytes of it have arrived in all."""
    more_body: bool = True
    news: bool = False
    """Whether some of the body has arrived, or its end, that was not received yet."""
    disconnected: bool = False
    response_started: bool = False
    response_complete: bool = False
    _chunked: bool = False
    _length: int = 0
    """Of the body that is yet to be sent, unless it is sent in chunks."""
    _head: bytes = b""
    """Of a response with a length, until some of its body comes: usually that is all of it."""
    waits: bool = False
    """Whether `receive` waits for `wake`."""
    _awake: asyncio.Event | None = None
    """None until `receive` has to wait."""

    __repr__ = object.__repr__  # the credential of the request belongs in no log

    async def receive(self) -> dict[str, Any]:
        if self.waiting_for_100_continue and not (self.disconnected or self.transport.is_closing()):
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        self.transport.resume_reading()
        while not (self.news or self.disconnected or self.response_complete):
            self._awake = self._awake or asyncio.Event()
            self._awake.clear()
            self.waits = True
            await self._awake.wait()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body, self.news = bytes(self.body), bytearray(), False
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Any) -> None:
        if self.transport.write_paused and not self.disconnected:
            await self.transport.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if kind == "http.response.body" and self.response_started and not self.response_complete:
            body, more = message.get("body", b""), message.get("more_body", False)
            if self._chunked:
                chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
                self.transport.write(chunk if more else chunk + b"0\r\n\r\n")
            else:
                self._write(body, more=more)
            if not more:
                self._complete()
        elif kind == "http.response.start" and not self.response_started:
            self._start(message["status"], message.get("headers", ()))
        else:
            raise RuntimeError(f"A message {kind!r} is not expected now.")

    def wake(self) -> None:
        """Lets `receive` look again."""
        self.waits = False
        if self._awake is not None:
            self._awake.set()

    def lose(self) -> None:
        """Called when the client is gone."""
        self.disconnected = True
        self.wake()
        self.scope[DISCONNECT].notify()

    def end(self) -> None:
        """Called when the application is done and the response is not."""
        if not self.disconnected:
            if not self.response_started:
                self._start(500, (_TEXT, (b"content-length", b"%d" % len(_FAILED)), _CLOSE))
                self._write(_FAILED, more=False)
                self._complete()
            elif self.transport.write_paused:
                self.transport.abort()  # a client that does not read would keep what was written so far
            else:
                self.transport.close()

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        if self.more_body and (self.waiting_for_100_continue or self._has_much_left()):
            # A client that waits may or may not send the body, so what comes next could be that or a request.
            self.keep_alive = False
        self.waiting_for_100_continue = False
        fields = [*self.default_headers, *headers]
        given = dict(fields)
        length = given.get(b"content-length")
        if length is not None:
            self._length = int(length)
        elif status not in _NO_BODY and self.scope["method"] != "HEAD":
            self._chunked = True
            fields.append(_CHUNKED)
        if given.get(b"connection") == b"close":
            self.keep_alive = False
        elif not self.keep_alive:
            fields.append(_CLOSE)
        lines = [*map(b": ".join, fields), b"", b""]
        head = b"".join(lines)
        if _LINE_FEED in head or _RETURN in head or _NULL in head:
            raise RuntimeError("A header of the response has a line break or a null byte.")
        head = STATUS_LINES[status] + b"\r\n".join(lines)
        if length is None:
            self.transport.write(head)
        else:
            self._head = head

    def _has_much_left(self) -> bool:
        """Returns True if much of the request is still to come, or nobody knows how much."""
        length = dict(self.scope["headers"]).get(b"content-length")
        return length is None or int(length) - self.arrived > _REST_BYTES

    def _write(self, body: bytes, *, more: bool) -> None:
        """Writes a piece of a body that is not sent in chunks."""
        if self.scope["method"] == "HEAD":
            body, self._length = b"", 0
        self._length -= len(body)
        if self._length < 0 or not (more or self._length == 0):
            raise RuntimeError("The response's body does not have the length that its head says.")
        data, self._head = self._head + body, b""
        if more:
            self.transport.write(data)
        else:
            self.transport.write_now(data)

    def _complete(self) -> None:
        self.response_complete = True
        if self.waits:
            self.wake()
        self.on_response()
