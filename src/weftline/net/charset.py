"""Decodes bytes in the encoding that the peer declares."""

from __future__ import annotations

import codecs

_UNFIT = frozenset({"idna", "punycode", "raw_unicode_escape", "unicode_escape", "undefined"})
"""Python's own codecs, which no page uses. The first two take quadratic time."""


def decoded(data: bytes, charset: str | None) -> str:
    """Decodes `data` with `charset`, or UTF-8 if that is unknown; undecodable bytes are replaced."""
    try:
        name = codecs.lookup(charset or "utf-8").name.replace("-", "_")
        return data.decode("utf-8" if name in _UNFIT else name, "replace")
    except (LookupError, ValueError):
        return data.decode("utf-8", "replace")
