"""File names as a model reads and writes them.

A name is displayed as it is, unless it would be misread on a line: if it has control characters, bytes that are not
UTF-8, or quotes around it. Such names are displayed in quotes with escapes, and accepted in the same form.
"""

from __future__ import annotations

import re
from typing import cast

_NEEDS_ESCAPE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPED = re.compile(r"[\\\"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPE = re.compile(r'\\(?:([\\"nrt])|x([0-9a-f]{2})|u([0-9a-f]{4}))')
_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LONG = {"\\": "\\", '"': '"', "n": "\n", "r": "\r", "t": "\t"}


def display_path(path: str) -> str:
    """Returns a path on one line, in valid Unicode."""
    quoted = len(path) > 1 and path[0] == path[-1] == '"'
    if not quoted and not _NEEDS_ESCAPE.search(path):
        return path
    return '"' + _ESCAPED.sub(lambda found: _escape(found[0]), path) + '"'


def parse_path(text: str) -> str:
    """Returns the path that `display_path` turns into `text`; the text itself if there is none."""
    if len(text) < 2 or not text.startswith('"') or not text.endswith('"'):
        return text
    path = _ESCAPE.sub(_unescape, text[1:-1])
    return path if display_path(path) == text else text


def _escape(character: str) -> str:
    short = _SHORT.get(character)
    if short is not None:
        return short
    code = ord(character)
    # A surrogate escape stands for a byte; everything else is a character.
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def _unescape(found: re.Match[str]) -> str:
    short, byte, code = cast("tuple[str | None, str | None, str | None]", found.groups())
    if short is not None:
        return _LONG[short]
    return chr(0xDC00 + int(byte, 16)) if byte is not None else chr(int(code or "0", 16))
