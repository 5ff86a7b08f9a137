"""Where a browser may be sent after consent."""

from __future__ import annotations

import re
from urllib.parse import urldefrag, urlsplit

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_PLAIN = re.compile(r"[\x21-\x7e]{1,2000}")
_NO_APPS = frozenset(
    {"about", "blob", "chrome", "data", "file", "filesystem", "ftp", "ftps", "gopher", "ipfs", "jar", "javascript"}
    | {"mailto", "sms", "tel", "urn", "vbscript", "view-source", "ws", "wss"}
)
"""Schemes that a browser or a mail program handles itself, so no app can be behind them."""


def redirect_uri(text: str) -> str | None:
    """The URI as it is stored and compared, without its fragment; None if an app may not use it."""
    if not _PLAIN.fullmatch(text) or any(char in text for char in '"<>\\^`{|}'):
        return None
    uri = urldefrag(text).url
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return None
    scheme = uri.partition(":")[0]
    if not _SCHEME.fullmatch(scheme) or ":" not in uri or parts.username is not None:
        return None
    if scheme == "https":
        return uri if host else None
    if scheme == "http":
        return uri if host in _LOOPBACK else None
    return uri if scheme not in _NO_APPS and uri != f"{scheme}:" else None
