"""Unpaired surrogates: JSON and Python strings can contain them, but UTF-8, and so the log, cannot.

Characters outside the Basic Multilingual Plane are two surrogates in UTF-16, and cutting such text by length may cut
between the two. In the output of models and tools, two halves that belong together are joined, and one without the
other becomes U+FFFD. Requests of clients are refused instead, as clients can correct them.
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
    """Returns the text with its pairs joined and unpaired surrogates replaced; nearly always the text itself."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def may_have_halves(data: bytes) -> bool:
    """Whether JSON contains any escaped surrogate; false for nearly all, and fast."""
    return b"\\ud" in data or b"\\uD" in data


def lone_halves(data: bytes) -> list[re.Match[bytes]]:
    """Returns the escapes in JSON that represent an unpaired surrogate."""
    return [found for found in _TOKEN.finditer(data) if found["lone"]] if may_have_halves(data) else []


def whole_json(data: bytes) -> bytes:
    """Returns the JSON with every unpaired surrogate replaced; nearly always the bytes themselves."""
    if not may_have_halves(data):
        return data
    return _TOKEN.sub(lambda found: REPLACEMENT if found["lone"] else found[0], data)
