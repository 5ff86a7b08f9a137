"""Where a browser may be sent after consent: the rules for redirect URIs, and how parameters are added to one."""

from __future__ import annotations

import re
from urllib.parse import urldefrag, urlencode, urlsplit

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_PLAIN = re.compile(r"[\x21-\x7e]{1,2000}")
_NO_APPS = frozenset(
    {"about", "blob", "chrome", "data", "file", "filesystem", "ftp", "ftps", "gopher", "ipfs", "jar", "javascript"}
    | {"mailto", "sms", "tel", "urn", "vbscript", "view-source", "ws", "wss"}
)
"""Schemes that a browser or a mail program handles itself: nobody's app is behind them."""


def redirect_uri(text: str) -> str | None:
    """The URI as it is stored and compared, without its fragment; None when apps may not have it."""
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


def with_parameters(uri: str, **parameters: str | None) -> str:
    """`uri` with these in its query; those that are None are left out."""
    query = urlencode({name: value for name, value in parameters.items() if value is not None})
    return f"{uri}{'&' if '?' in uri else '?'}{query}"
