"""Characters that cannot be stored: unpaired surrogates, and U+0000.

JSON and Python strings can contain unpaired surrogates, but UTF-8, and so the log, cannot. U+0000 is text, but not to
Postgres, most model APIs or programs in C.

Characters outside the Basic Multilingual Plane are two surrogates in UTF-16, and cutting such text by length may cut
between the two. In the output of models and tools, two halves that belong together are joined, and one without the
other becomes U+FFFD, as does U+0000. Requests of clients are refused instead, as clients can correct them.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    rb"\\\\"  # an escaped backslash, so that what follows it is not taken for an escape
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole pair
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|(?P<nul>\\u0000)"
)
_NUL = rb"\u0000"
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


def storable(text: str) -> str:
    """Like `whole`, and without U+0000."""
    text = whole(text)
    return text.replace("\0", "\ufffd") if "\0" in text else text


def may_have_nul(data: bytes) -> bool:
    """Returns True if JSON looks as if it contained U+0000; false for nearly all, and fast."""
    return _NUL in data


def without_nul(data: bytes) -> bytes:
    """Returns the JSON with U+0000 replaced; nearly always the bytes themselves."""
    return _TOKEN.sub(lambda found: REPLACEMENT if found["nul"] else found[0], data) if may_have_nul(data) else data


def storable_json(data: bytes) -> bytes:
    """Like `whole_json`, and without U+0000."""
    return without_nul(whole_json(data))


def may_have_halves(data: bytes) -> bool:
    """Returns True if JSON contains any escaped surrogate; false for nearly all, and fast."""
    return b"\\ud" in data or b"\\uD" in data


def lone_halves(data: bytes) -> list[re.Match[bytes]]:
    """Returns the escapes in JSON that represent an unpaired surrogate."""
    return [found for found in _TOKEN.finditer(data) if found["lone"]] if may_have_halves(data) else []


def whole_json(data: bytes) -> bytes:
    """Returns the JSON with every unpaired surrogate replaced; nearly always the bytes themselves."""
    if not may_have_halves(data):
        return data
    return _TOKEN.sub(lambda found: REPLACEMENT if found["lone"] else found[0], data)
