"""Reads requests that ask for another protocol (`Connection: Upgrade`) like any other.

We support no other protocol, so the request is ordinary, and its body follows its head. But the parser expects the
other protocol after such a head, and would take the body for the next request. So a new parser gets the headers about
the body, and continues from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import httptools

_FRAMING = (b"content-length", b"transfer-encoding")


class Callbacks(Protocol):
    """The callbacks of a parser."""

    def on_message_begin(self) -> None: ...
    def on_url(self, url: bytes) -> None: ...
    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_headers_complete(self) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


def parser_of_rest(to: Callbacks, headers: Iterable[tuple[bytes, bytes]]) -> httptools.HttpRequestParser:
    """Returns a parser for what follows a head with these headers, without reporting that head to `to` again."""
    lines = [b"%b: %b\r\n" % header for header in headers if header[0] in _FRAMING]
    after = _AfterHead(to)
    parser = httptools.HttpRequestParser(after)
    # As in uvicorn: what comes after the last request of a connection is ignored.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *lines, b"\r\n"]))
    after.in_head = False
    return parser


class _AfterHead:
    """Passes on callbacks after the first head."""

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
