"""Halves of characters: JSON and Python strings can spell them, UTF-8 and so the log cannot hold them.

Characters outside the Basic Multilingual Plane are two surrogates in UTF-16, and whoever cuts such text by its length
may cut between the two. The rule for what models and tools say: two halves that belong together are joined, and one
without the other becomes U+FFFD. (What clients ask for is refused instead: they can say what they mean.)
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    rb"\\\\"  # an escaped backslash, so that what follows it is not taken for an escape
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole pair
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
REPLACEMENT = rb"\ufffd"


def whole(text: str) -> str:
    """The text with its pairs joined and its lone halves replaced; nearly always the text itself."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def may_have_halves(data: bytes) -> bool:
    """Whether JSON spells any surrogate; false for nearly all, and fast."""
    return b"\\ud" in data or b"\\uD" in data


def lone_halves(data: bytes) -> list[re.Match[bytes]]:
    """The escapes in JSON that stand for an unpaired surrogate."""
    return [found for found in _TOKEN.finditer(data) if found["lone"]] if may_have_halves(data) else []


def whole_json(data: bytes) -> bytes:
    """The JSON with every lone half replaced; nearly always the bytes themselves."""
    if not may_have_halves(data):
        return data
    return _TOKEN.sub(lambda found: REPLACEMENT if found["lone"] else found[0], data)
