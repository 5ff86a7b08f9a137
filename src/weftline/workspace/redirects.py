"""Where a browser may be sent after consent: https, this machine, or an app by its own scheme (RFC 8252)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from urllib.parse import SplitResult, urldefrag, urlsplit

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_OWN_SCHEME = re.compile(r"[a-z][a-z0-9+-]*(?:\.[a-z0-9+-]+)+")
"""A reversed domain name, as apps should use: no browser or operating system has a scheme with a dot."""
_LISTED_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{1,63}")
_PLAIN = re.compile(r"[\x21-\x7e]{1,2000}")
_NO_APPS = frozenset(
    {"about", "blob", "chrome", "data", "file", "filesystem", "ftp", "ftps", "http", "https", "intent", "jar"}
    | {"javascript", "mailto", "sms", "tel", "urn", "vbscript", "view-source", "ws", "wss"}
)
"""Schemes that a browser or operating system handles itself: they cannot be listed as an app's."""


def is_scheme_of_an_app(text: str) -> bool:
    """Returns True if an operator may list this as the scheme of an app."""
    return bool(_LISTED_SCHEME.fullmatch(text)) and text not in _NO_APPS


def redirect_uri(text: str, *, schemes: Collection[str] = ()) -> str | None:
    """The URI as it is stored and compared, without its fragment; None if an app may not use it.

    `schemes` are those without a dot that are known to belong to apps.
    """
    if not _PLAIN.fullmatch(text) or any(char in text for char in '"<>\\^`{|}'):
        return None
    uri = urldefrag(text).url
    parts = _parts(uri)
    if parts is None or parts.username is not None:
        return None
    scheme, host = uri.partition(":")[0], parts.hostname
    if scheme == "https":
        return uri if host else None
    if scheme == "http":
        return uri if host in _LOOPBACK else None
    if uri == f"{scheme}:" or not (_OWN_SCHEME.fullmatch(scheme) or scheme in schemes):
        return None
    if scheme.partition(".")[0] in _NO_APPS:
        return None  # looks like something that a browser handles itself, and is not a domain
    return uri


def is_registered(uri: str, registered: Iterable[str]) -> bool:
    """Returns True if a browser may be redirected to `uri`. On this machine any port is allowed, because apps use
    whichever is free.
    """
    listed = set(registered)
    if uri in listed:
        return True
    anywhere = _without_port(uri)
    return anywhere is not None and redirect_uri(uri) == uri and anywhere in map(_without_port, listed)


def _without_port(uri: str) -> str | None:
    """An http address of this machine without its port; None for any other."""
    parts = _parts(uri)
    if parts is None or parts.scheme != "http" or parts.hostname not in _LOOPBACK:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return uri.replace(parts.netloc, host, 1)


def _parts(uri: str) -> SplitResult | None:
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        return None
    return parts
