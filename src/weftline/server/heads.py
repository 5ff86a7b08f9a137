"""The heads of requests, and the first lines of responses.

What we do not support is refused, so that no proxy reads a request differently.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus

import httptools

from weftline.errors import InvalidRequest, WeftlineError
from weftline.text.percent import decoded

STATUS_LINES = {status: b"HTTP/1.1 %d \r\n" % status for status in range(100, 600)} | {
    int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}
WATCHED = frozenset({b"host", b"expect", b"transfer-encoding", b"content-encoding"})
"""The headers that `check_head` checks."""
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+(?:%25[A-Za-z0-9._~-]+)?\])(?::[0-9]{0,5})?")

_QUERY, _FRAGMENT = b"?#"
"""As numbers: bytes find one five times as fast as they find other bytes."""


def path_and_query(target: bytes) -> tuple[bytes, bytes]:
    """Raises `httptools.HttpParserInvalidURLError` for what is neither a path nor a URL."""
    if target.startswith(b"/") and _QUERY not in target and _FRAGMENT not in target:
        return target, b""
    url = httptools.parse_url(target)
    return url.path, url.query or b""


def readable(path: bytes) -> str:
    """Decodes a path, except for escaped slashes, which are part of a name and not separators."""
    if b"%" not in path:
        return path.decode("ascii")
    kept = path.replace(b"%2F", b"%252F").replace(b"%2f", b"%252f")
    return decoded(kept).decode("utf-8", "replace")


def check_head(version: str, method: bytes, watched: Sequence[tuple[bytes, bytes]]) -> bool:
    """Checks a head. Returns whether the client waits for `100 Continue`. Raises a `WeftlineError`."""
    if version not in ("1.0", "1.1"):
        raise InvalidRequest("Requests must be HTTP/1.1 or HTTP/1.0.")
    if method == b"CONNECT":
        raise WeftlineError("This server is not a proxy.", code="not_implemented")
    hosts = _values(watched, b"host")
    if len(hosts) > 1:
        raise InvalidRequest("The request has more than one Host header.")
    if not hosts and version == "1.1":
        raise InvalidRequest("The request has no Host header.")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise InvalidRequest("The Host header does not name a host.")
    codings = _values(watched, b"transfer-encoding")
    if codings and version == "1.0":
        raise InvalidRequest("HTTP/1.0 does not support Transfer-Encoding.")
    if codings and codings != [b"chunked"]:
        raise WeftlineError("The only supported transfer coding is `chunked`.", code="not_implemented")
    if any(coding not in (b"", b"identity") for coding in _values(watched, b"content-encoding")):
        raise WeftlineError("Bodies with a Content-Encoding are not supported.", code="unsupported_encoding")
    expected = _values(watched, b"expect") if version == "1.1" else []
    if any(one != b"100-continue" for one in expected):
        raise WeftlineError("The only supported expectation is 100-continue.", code="expectation_failed")
    return bool(expected)


def _values(watched: Sequence[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value.strip().lower() for key, value in watched if key == name]
