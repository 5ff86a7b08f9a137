"""Characters that cannot be stored, unpaired surrogates and U+0000, and bytes in the encoding that a peer declares."""

from __future__ import annotations

import codecs
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


_UNFIT = frozenset({"idna", "punycode", "raw_unicode_escape", "unicode_escape", "undefined"})
"""Python's own codecs, which no page uses. The first two take quadratic time."""


def decoded(data: bytes, charset: str | None) -> str:
    """Decodes `data` with `charset`, or UTF-8 if that is unknown; undecodable bytes are replaced."""
    try:
        name = codecs.lookup(charset or "utf-8").name.replace("-", "_")
        return data.decode("utf-8" if name in _UNFIT else name, "replace")
    except (LookupError, ValueError):
        return data.decode("utf-8", "replace")
