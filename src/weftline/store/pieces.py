"""Splits long strings and lists out of a body, so that the store keeps repeated content once.

A message of a megabyte is in the log of the run that brings it, in its thread, in every fork of the run and in the logs
of the runs that it is passed to, each time as a string in a JSON text. A store may keep the string once, under its
digest, and the body with a mark in its place. JSON never contains a zero byte, so a mark cannot be mistaken for
content:

    0x00 =<id>      the piece, as it is: a string, or some elements of a list
    0x00 a<id>      the piece, with `\\u` escapes for whatever is not ASCII, as some clients write it
    0x00 ( … 0x00 ) a string whose content is JSON itself, such as the arguments of a call, with marks of its own

Long lists of short elements are split in the same way, some elements at a time. Short bodies are left as they are.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

Range = tuple[int, int]

_MAX_LIST_DEPTH = 4
"""The messages of a plan are at depth three."""
_MAX_OBJECTS = 50_000
"""A body with more objects is data rather than messages, and would take too long."""

_PROBE = 64
"""How many bytes of a value are searched for first."""

_fields = Decoder(dict[str, Raw]).decode
_elements = Decoder(list[Raw]).decode


def groups(body: bytes, taken: Sequence[Range], *, size: int) -> list[Range]:
    """Ranges of adjacent elements in the long lists of a JSON text, each of at least `size` bytes.

    `taken` are the sorted ranges that are stored in other ways; no group overlaps them.
    """
    if body.count(b"{") > _MAX_OBJECTS:
        return []
    try:
        return list(_in_value(body, 0, len(body), taken, size=size, depth=0))
    except (DecodeError, UnicodeError, RecursionError):
        return []


def _in_value(body: bytes, start: int, end: int, taken: Sequence[Range], *, size: int, depth: int) -> Iterator[Range]:
    if depth == _MAX_LIST_DEPTH or end - start < 2 * size:
        return
    match body[start : start + 1]:
        case b"{":
            at = start
            for field in _fields(body[start:end]).values():
                value = bytes(field)
                if len(value) >= 2 * size and (at := _find(body, value, at)) >= 0:
                    yield from _in_value(body, at, at + len(value), taken, size=size, depth=depth + 1)
                    at += len(value)
        case b"[" if body[start + 1 : start + _PROBE].lstrip()[:1] == b"{":
            yield from _in_list(body, start, end, taken, size=size, depth=depth)
        case _:
            pass


def _in_list(body: bytes, start: int, end: int, taken: Sequence[Range], *, size: int, depth: int) -> Iterator[Range]:
    first, last = -1, start
    for element in _elements(body[start:end]):
        at = _next(body, last)
        last = at + len(bytes(element))
        place = bisect_left(taken, (at, 0))
        if place < len(taken) and taken[place][0] < last:
            first = -1
            yield from _in_value(body, at, last, taken, size=size, depth=depth + 1)
            continue
        first = at if first < 0 else first
        if last - first >= size:
            yield first, last
            first = -1


def _next(body: bytes, at: int) -> int:
    """Where the next element of a list begins."""
    while body[at] in b"[, \t\r\n":
        at += 1
    return at


def _find(body: bytes, value: bytes, at: int) -> int:
    """Like `bytes.find`, which is slow to start with a long needle."""
    probe = value[:_PROBE]
    at = body.find(probe, at)
    while at >= 0 and not body.startswith(value, at):
        at = body.find(probe, at + 1)
    return at


PIECE_BYTES = 16 * 1024
"""Strings of this length or more are pieces: a row of their own is worth it."""

_MARK = b"\0"
_AS_IT_IS, _ASCII, _QUOTED, _UNQUOTED = b"=", b"a", b"(", b")"
_ID = slice(1, 65)
"""Where the id is in a mark."""

_MAX_STRING_DEPTH = 2
"""How deep strings may be nested in strings. The arguments of a call are at depth one, or two in a text that quotes the
call.
"""

_decode_string = Decoder(str).decode


class Split(Struct, frozen=True):
    """A body with marks in place of its long strings."""

    body: bytes
    size: int
    """The bytes of the whole body."""
    pieces: dict[str, bytes]
    """What the marks stand for, by SHA-256 in hex."""


def split(body: bytes) -> Split | None:
    """None if the body should be stored unchanged."""
    if len(body) < PIECE_BYTES or _MARK in body:
        return None
    pieces: dict[str, bytes] = {}
    marked = _marked(body, pieces, depth=0)
    return Split(marked, len(body), pieces) if pieces else None


def join(body: bytes, find: Callable[[str], bytes | None]) -> bytes:
    """The whole body. If a piece is missing or damaged it keeps its marks, so that it cannot be decoded."""
    try:
        return _joined(body, find)
    except (_Missing, DecodeError, UnicodeError):
        return body


class _Missing(Exception):
    """A piece cannot be found, or the body is not one that was split."""


def _joined(body: bytes, find: Callable[[str], bytes | None]) -> bytes:
    first, *marks = body.split(_MARK)
    parts, outer = [first], list[list[bytes]]()
    for mark in marks:
        kind = mark[:1]
        if kind == _QUOTED:
            outer.append(parts)
            parts = [mark[1:]]
        elif kind == _UNQUOTED and outer:
            quoted = _quoted(b"".join(parts))
            parts = [*outer.pop(), quoted, mark[1:]]
        else:
            piece = find(mark[_ID].decode(errors="replace"))
            if piece is None:
                raise _Missing
            parts += [_in_ascii(piece) if kind == _ASCII else piece, mark[_ID.stop :]]
    if outer:
        raise _Missing
    return b"".join(parts)


def _marked(text: bytes, pieces: dict[str, bytes], *, depth: int) -> bytes:
    parts: list[bytes] = []
    done = 0
    strings = list(_long_strings(text))
    places = [(start, end, True) for start, end in strings]
    if depth == 0 and len(text) - sum([end - start for start, end in strings]) >= 2 * PIECE_BYTES:
        places += [(start, end, False) for start, end in groups(text, strings, size=PIECE_BYTES)]
    for start, end, is_string in sorted(places):
        if start < done:
            continue  # the value of a repeated field may have been found inside a string
        piece = text[start:end]
        parts += [text[done:start], _mark(piece, pieces, depth=depth) if is_string else _named(piece, pieces)]
        done = end
    parts.append(text[done:])
    return b"".join(parts)


def _mark(string: bytes, pieces: dict[str, bytes], *, depth: int) -> bytes:
    if depth < _MAX_STRING_DEPTH and string[:1] in (b"{", b"[") and b'\\"' in string:
        inside: dict[str, bytes] = {}
        content = _content(string)
        if content is not None and _MARK not in content:
            marked = _marked(content, inside, depth=depth + 1)
            if inside:
                pieces |= inside
                return b"".join((_MARK, _QUOTED, marked, _MARK, _UNQUOTED))
    kind = _AS_IT_IS
    if b"\\u" in string and (other := _unescaped(string)) is not None:
        kind, string = _ASCII, other
    return _named(string, pieces, kind)


def _named(piece: bytes, pieces: dict[str, bytes], kind: bytes = _AS_IT_IS) -> bytes:
    id = sha256(piece).hexdigest()
    pieces[id] = piece
    return b"".join((_MARK, kind, id.encode()))


def _content(string: bytes) -> bytes | None:
    """The content of a quoted string; None if quoting it again would not give the same bytes."""
    try:
        content = _decode_string(b'"%s"' % string).encode()
    except (DecodeError, UnicodeError):
        return None
    return content if _quoted(content) == string else None


def _quoted(content: bytes) -> bytes:
    return encode(content.decode())[1:-1]


def _unescaped(string: bytes) -> bytes | None:
    """The same string without `\\u` escapes; None if escaping it again would not give the same bytes."""
    try:
        other = encode(_decode_string(b'"%s"' % string))[1:-1]
    except (DecodeError, UnicodeError):
        return None
    return other if _in_ascii(other) == string else None


def _in_ascii(string: bytes) -> bytes:
    return json.dumps(_decode_string(b'"%s"' % string)).encode()[1:-1]


def _long_strings(text: bytes) -> Iterator[tuple[int, int]]:
    """Where the long strings of a JSON text are, without their quotes.

    Searches in steps of the minimum length, so that the many short strings of a long body cost next to nothing.
    """
    if b"\\" in text:  # with escapes neutralized, every quote begins or ends a string
        text = text.replace(b"\\\\", b"..").replace(b'\\"', b"..")
    at, inside = 0, False
    while at + PIECE_BYTES <= len(text):
        last = text.rfind(b'"', at, at + PIECE_BYTES)
        if last >= 0:
            inside ^= bool(text.count(b'"', at, last + 1) & 1)
            at = last + 1
            continue
        end = text.find(b'"', at + PIECE_BYTES)
        if end < 0:
            return
        if inside:
            yield at, end
        at, inside = end + 1, not inside
