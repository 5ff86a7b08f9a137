"""Requests that ask for another protocol (`Connection: Upgrade`), read like any other.

We speak no other protocol, so the request is ordinary, and its body is where its head says. The parser does not see it
that way: after such a head it expects the other protocol, and would take the body for the next request. A new parser
is told what the head said about the body, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import httptools

_FRAMING = (b"content-length", b"transfer-encoding")


class Callbacks(Protocol):
    """What a parser reports about the requests that it reads."""

    def on_message_begin(self) -> None: ...
    def on_url(self, url: bytes) -> None: ...
    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_headers_complete(self) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


def parser_of_rest(to: Callbacks, headers: Iterable[tuple[bytes, bytes]]) -> httptools.HttpRequestParser:
    """A parser for all that follows a head with these headers. `to` hears nothing of that head again."""
    lines = [b"%b: %b\r\n" % header for header in headers if header[0] in _FRAMING]
    after = _AfterHead(to)
    parser = httptools.HttpRequestParser(after)
    # As uvicorn has it: what comes after the last request of a connection is ignored.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *lines, b"\r\n"]))
    after.in_head = False
    return parser


class _AfterHead:
    """Passes on what it is told after the first head."""

    def __init__(self, to: Callbacks) -> None:
        self._to = to
        self.in_head = True
        self.on_body = to.on_body
        self.on_message_complete = to.on_message_complete

    def on_message_begin(self) -> None:
        if not self.in_head:
            self._to.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self.in_head:
            self._to.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            self._to.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.in_head:
            self._to.on_headers_complete()
