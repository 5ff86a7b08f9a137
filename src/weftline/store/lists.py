"""Splits long lists in a body into groups of elements that can be stored once.

A client that keeps its conversation itself sends all of it with every run, and the tools of an agent are in the plan of
each of its runs. Such lists have short elements and begin alike. Groups are counted from the beginning of a list, so
two lists that begin alike have the same groups up to where they differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from msgspec import DecodeError, Raw
from msgspec.json import Decoder

Range = tuple[int, int]

_MAX_DEPTH = 4
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
    if depth == _MAX_DEPTH or end - start < 2 * size:
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
