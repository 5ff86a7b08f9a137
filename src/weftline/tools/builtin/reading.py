"""Reading files: names as a model writes them, one page at a time, and what a run knows of what it has read."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from hashlib import blake2b
from typing import Any, cast

from msgspec import Struct

from weftline import prompts
from weftline.tools.base import ToolFailed

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


LIMIT = 2000
MAX_BYTES = 262_144
_MANY_UNDECODABLE = 0.1
"""The share of all characters. A text in another encoding has less, an image or an archive has more."""


class Slice(Struct, frozen=True):
    """Which part of a file to read; 0 disables a limit."""

    offset: int = 1
    limit: int = LIMIT
    max_bytes: int = MAX_BYTES


class Page(Struct, frozen=True):
    text: str
    first: int
    last: int


def checked_slice(offset: int, limit: int, max_bytes: int) -> Slice:
    if offset < 1:
        raise ToolFailed(prompts.files.OFFSET_FROM_ONE)
    for name, value in (("limit", limit), ("max_bytes", max_bytes)):
        if value < 0:
            raise ToolFailed(prompts.files.negative(name))
    return Slice(offset, limit, max_bytes)


def is_binary(data: bytes) -> bool:
    if b"\0" in data:
        return True
    if data.isascii():
        return False
    text = data.decode("utf-8", "replace")
    return text.count("\ufffd") - data.count(b"\xef\xbf\xbd") > _MANY_UNDECODABLE * len(text)


def page(data: bytes, wanted: Slice, *, path: str, numbered: bool, complete: bool = True) -> Page:
    """Returns the lines of `data` that `wanted` selects. `complete` is False if the file continues after `data`."""
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    total = len(lines)
    ends = [] if complete else [prompts.files.file_cut(len(data))]
    if not total:
        return Page(prompts.files.EMPTY_FILE, 1, 0)
    first = wanted.offset
    if first > total:
        raise ToolFailed(prompts.files.offset_past_end(path, first, total))
    taken = lines[first - 1 : first - 1 + wanted.limit if wanted.limit else None]
    fitting = _fitting(taken, wanted.max_bytes)
    if not fitting:
        kept = whole_characters(taken[0][: wanted.max_bytes])
        fitting, last = [kept], first
        ends.insert(0, prompts.files.line_cut(first, len(kept), len(taken[0]), total))
    else:
        last = first + len(fitting) - 1
        if last < total:
            ends.insert(0, prompts.files.lines_remain(first, last, total))
    texts = [line.decode("utf-8", "replace") for line in fitting]
    if numbered:
        texts = [f"{number}\t{text}" for number, text in enumerate(texts, first)]
    body = "\n".join(texts)
    if not numbered and last == total and not ends and data.endswith(b"\n"):
        body += "\n"
    return Page("\n".join([body, *ends]), first, last)


def _fitting(lines: list[bytes], max_bytes: int) -> list[bytes]:
    """Returns as many whole lines as fit."""
    if not max_bytes:
        return lines
    room = max_bytes
    for count, line in enumerate(lines):
        room -= len(line)
        if room < 0:
            return lines[:count]
        room -= 1  # the line break
    return lines


def whole_characters(head: bytes) -> bytes:
    """Removes a code point that the cut at the end left incomplete."""
    for back in range(1, min(4, len(head)) + 1):
        byte = head[-back]
        if byte < 0x80:
            return head
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return head[:-back] if back < length else head
    return head


def whole_tail(tail: bytes) -> bytes:
    """Removes the rest of a code point that the cut at the beginning left incomplete."""
    for start in range(4):
        if start == len(tail) or tail[start] & 0xC0 != 0x80:
            return tail[start:]
    return tail  # no character has four such bytes, so it was not text to begin with


def fingerprint(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


class FileMemory:
    """The last version of each file that the model knows, and the part that it read last."""

    def __init__(self, state: MutableMapping[str, Any]) -> None:
        self._state = state

    def known(self, path: str) -> str | None:
        """The fingerprint of the version that the model read or wrote last."""
        return cast("str | None", self._entry(path).get("hash"))

    def has_seen(self, path: str, data: bytes, part: Slice) -> bool:
        """Returns True if the last read of this file returned exactly this part of this content."""
        entry = self._entry(path)
        return entry.get("part") == _written(part) and entry.get("hash") == fingerprint(data)

    def saw(self, path: str, data: bytes, part: Slice) -> None:
        self._state[_key(path)] = {"hash": fingerprint(data), "part": _written(part)}

    def wrote(self, path: str, data: bytes) -> None:
        """Records that the model knows the new content. No result contains it, so reading it is not a repetition."""
        self._state[_key(path)] = {"hash": fingerprint(data)}

    def _entry(self, path: str) -> dict[str, Any]:
        entry = self._state.get(_key(path))
        return cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}


def _key(path: str) -> str:
    return "read:" + path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _written(part: Slice) -> list[int]:
    return [part.offset, part.limit, part.max_bytes]
