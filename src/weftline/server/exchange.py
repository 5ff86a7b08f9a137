"""One request and its response on a connection: uvicorn's, with heads that are written at once.

Uvicorn matches two regular expressions against every header that it sends. Ours are created here, mostly from trusted
values, so the head is checked as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from weftline.server.corked import Corked

_CHUNKED = (b"transfer-encoding", b"chunked")
_CLOSE = (b"connection", b"close")
_NO_BODY = frozenset({204, 304})
_LINE_FEED, _RETURN, _NULL = b"\n\r\0"
"""As integers, since searching bytes for an integer is five times as fast."""


class Exchange(RequestResponseCycle):
    _head = b""
    """Of a response with a length, until some of its body comes: usually that is all of it."""

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if kind == "http.response.body" and self.response_started and not self.response_complete:
            self._continue(message.get("body", b""), more=message.get("more_body", False))
        elif kind == "http.response.start" and not self.response_started:
            self._start(message["status"], message.get("headers", ()))
        else:
            raise RuntimeError(f"A message {kind!r} is not expected now.")

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        if self.waiting_for_100_continue:
            self.waiting_for_100_continue = False
            if self.more_body:
                # It is unknown whether the client still sends the body, so what comes next could be that or a request.
                self.keep_alive = False
        fields = [*self.default_headers, *headers]
        given = dict(fields)
        length = given.get(b"content-length")
        self.chunked_encoding = length is None and status not in _NO_BODY and self.scope["method"] != "HEAD"
        self.expected_content_length = 0 if length is None else int(length)
        if self.chunked_encoding:
            fields.append(_CHUNKED)
        if given.get(b"connection") == b"close":
            self.keep_alive = False
        elif not self.keep_alive:
            fields.append(_CLOSE)
        lines = [*map(b": ".join, fields), b"", b""]
        head = b"".join(lines)
        if _LINE_FEED in head or _RETURN in head or _NULL in head:
            raise RuntimeError("A header of the response has a line break or a null byte.")
        head = STATUS_LINE[status] + b"\r\n".join(lines)
        if length is None:
            self.transport.write(head)
        else:
            self._head = head

    def _continue(self, body: bytes, *, more: bool) -> None:
        if self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self.transport.write(chunk if more else chunk + b"0\r\n\r\n")
        else:
            if self.scope["method"] == "HEAD":
                body, self.expected_content_length = b"", 0
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or not (more or self.expected_content_length == 0):
                raise RuntimeError("The response's body does not have the length that its head says.")
            data, self._head = self._head + body, b""
            if more:
                self.transport.write(data)
            else:
                cast(Corked, self.transport).write_now(data)
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
