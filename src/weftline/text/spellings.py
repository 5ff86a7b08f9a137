"""Finds a secret however it is encoded.

Encoders of JSON, URLs and HTML differ in which characters they escape and how, and encodings are nested. So they are
not enumerated: a text is read repeatedly with its escapes undone, all kinds at once, and each reading is searched. What
is found is located in the original text.

    reading 0   {"k":"a\\\\u002Bb"}
    reading 1   {"k":"a\\u002Bb"}
    reading 2   {"k":"a+b"}           the secret `a+b` is at 6 to 15 of the text

The time is linear in the text: there are few readings, and most texts are the same in all of them.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from html.entities import html5
from string import ascii_lowercase, ascii_uppercase

from msgspec import Struct

MAX_NESTING = 4
"""How often escapes may be escaped again."""
CHARS_PER_CHAR = 12
"""How many characters one character of a secret becomes at most, except in absurd encodings and with white space."""

_MIN_BROKEN_CHARS = 8
"""A shorter text is not searched for across white space, as adjacent words may contain it by chance."""
_MIN_CORE_CHARS = 6
"""The same for what is left of a short secret in the middle of base64."""

_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|\\(?:u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]{1,6}\}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-3][0-7]{2}|[bfnrt]|[^0-9A-Za-z])"
    r"|%[0-7][0-9a-fA-F]|(?:%[89a-fA-F][0-9a-fA-F])+"
    r"|&(?:#[0-9]{1,8};?|#[xX][0-9a-fA-F]{1,7};?|[A-Za-z][0-9A-Za-z]{1,31};)",
    re.DOTALL,
)
_SPACE = re.compile(r"\s+")
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_ONE_ALPHABET = str.maketrans("-_", "+/")
_BASE64 = frozenset(ascii_lowercase + ascii_uppercase + "0123456789+/")

Span = tuple[int, int]


class Needle(Struct, frozen=True):
    """A secret as it is searched for in each reading. Non-ASCII characters are as in the searched text."""

    plain: tuple[str, ...]
    broken: tuple[str, ...]
    """`plain` without white space."""
    hexed: str
    cores: tuple[tuple[str, int, int], ...]
    """The secret in base64, at each of its three alignments.

    Each has the characters that depend only on the secret, and how many before and after them contain some of its bits.
    """

    @classmethod
    def of(cls, secret: str, *, latin: bool = False) -> Needle:
        """Returns the needle; with `latin` for texts that are bytes, one character each."""
        data = secret.encode("utf-8", "surrogatepass")
        plain = data.decode("latin-1") if latin else secret
        meant = {plain: None}
        for _ in range(2):
            # A secret may itself look escaped. Undoing the escapes around it then undoes its own as well.
            meant |= {unescaped(one, latin=latin): None for one in list(meant) if len(one) >= 3}
        meant |= {one.replace(" ", "+"): None for one in list(meant) if " " in one}  # as forms encode it
        kept = tuple([one for one in meant if len(one) >= min(3, len(plain))])
        broken = tuple([found for one in kept if len(found := _squeezed(one)) >= _MIN_BROKEN_CHARS])
        return cls(kept, broken, data.hex(), tuple(_cores(data)))

    def found_in(self, reading: Reading) -> Iterator[Span]:
        text = reading.text
        for one in self.plain:
            yield from reading.spans(_places(text, one), len(one))
        yield from reading.spans(_places(reading.lower, self.hexed), len(self.hexed))
        for core, before, after in self.cores:
            yield from _around(reading, core, before, after)

    def broken_in(self, reading: Reading) -> Iterator[Span]:
        for one in self.broken:
            yield from reading.spans(_places(reading.text, one), len(one))
        if len(self.hexed) >= _MIN_BROKEN_CHARS:
            yield from reading.spans(_places(reading.lower, self.hexed), len(self.hexed))
        for core, before, after in self.cores:
            if len(core) >= _MIN_BROKEN_CHARS:
                yield from _around(reading, core, before, after)


class Reading:
    """A text as it was given, or with something undone. Knows where its characters come from."""

    def __init__(self, text: str, below: Reading | None = None, undone: re.Pattern[str] = _ESCAPE, *, latin: bool):
        self.text = text
        self._below = below
        self._undone = undone
        self._latin = latin

    @cached_property
    def lower(self) -> str:
        return self.text.translate(_LOWER)

    @cached_property
    def in_one_alphabet(self) -> str:
        """The text with one base64 alphabet instead of two."""
        return self.text.translate(_ONE_ALPHABET)

    def unescaped(self) -> Reading | None:
        """Returns the reading with its escapes undone; None if there are none."""
        text = unescaped(self.text, latin=self._latin)
        return None if text == self.text else Reading(text, self, latin=self._latin)

    def squeezed(self) -> Reading | None:
        """Returns it without white space, which breaks lines of base64; None if it has none."""
        text = _squeezed(self.text)
        return None if len(text) == len(self.text) else Reading(text, self, _SPACE, latin=self._latin)

    def spans(self, places: Iterable[int], length: int) -> Iterator[Span]:
        for place in places:
            yield self._given(place, place + length)

    def _given(self, start: int, end: int) -> Span:
        """Returns the same range in the original text."""
        if self._below is None:
            return start, end
        return self._below._given(self._source(start)[0], self._source(end - 1)[1])

    def _source(self, place: int) -> Span:
        """Returns what the character at `place` was made from."""
        starts, ends, sources, source_ends = self._changes
        at = bisect_right(starts, place) - 1
        if at < 0:
            return place, place + 1
        if place < ends[at]:
            return sources[at], source_ends[at]
        before = source_ends[at] + place - ends[at]
        return before, before + 1

    @cached_property
    def _changes(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Everything that was undone: where it starts and ends here, and in the reading below."""
        assert self._below is not None
        starts: list[int] = []
        ends: list[int] = []
        sources: list[int] = []
        source_ends: list[int] = []
        shift = 0
        for match in self._undone.finditer(self._below.text):
            length = 0 if self._undone is _SPACE else len(_undone(match, self._latin))
            starts.append(match.start() - shift)
            ends.append(match.start() - shift + length)
            sources.append(match.start())
            source_ends.append(match.end())
            shift += match.end() - match.start() - length
        return starts, ends, sources, source_ends


def spans_of(needles: Sequence[Needle], text: str, *, nesting: int = MAX_NESTING, latin: bool = False) -> list[Span]:
    """Returns where any of these is in the text, in order and without overlaps."""
    found: list[Span] = []
    reading: Reading | None = Reading(text, latin=latin)
    for _ in range(1 + nesting):
        squeezed = reading.squeezed() if nesting else None
        for needle in needles:
            found += needle.found_in(reading)
            if squeezed is not None:
                found += needle.broken_in(squeezed)
        reading = reading.unescaped()
        if reading is None:
            break
    return _merged(found)


def unescaped(text: str, *, latin: bool = False) -> str:
    """Returns the text with the escapes of JSON, URLs and HTML undone once."""
    if "\\" not in text and "%" not in text and "&" not in text:
        return text
    return _ESCAPE.sub(lambda match: _undone(match, latin), text)


def _undone(match: re.Match[str], latin: bool) -> str:
    escape = match[0]
    if escape[0] == "%":
        data = bytes.fromhex(escape.replace("%", ""))
        return data.decode("latin-1") if latin else data.decode("utf-8", "replace")
    if escape[0] == "&":
        meant = _of_entity(escape)
    elif len(escape) == 2:
        meant = _CONTROLS.get(escape[1], escape[1])
    elif len(escape) == 12:
        halves = bytes.fromhex(escape[2:6] + escape[8:])
        meant = halves.decode("utf-16-be")
    elif escape[1].isdigit():
        meant = chr(int(escape[1:], 8))
    else:
        meant = _character(int(escape[2:].strip("{}"), 16)) or escape
    return meant.encode("utf-8", "surrogatepass").decode("latin-1") if latin and not meant.isascii() else meant


def _of_entity(escape: str) -> str:
    if escape[1] != "#":
        return html5.get(escape[1:], escape)
    digits = escape[2:].rstrip(";")  # browsers do not require it
    number = int(digits[1:], 16) if digits[0] in "xX" else int(digits)
    return _character(number) or escape


def _character(number: int) -> str:
    return chr(number) if number <= 0x10FFFF else ""


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _cores(data: bytes) -> Iterator[tuple[str, int, int]]:
    for shift in range(3):
        first = -(-shift * 8 // 6)
        bits = (shift + len(data)) * 8
        encoded = base64.b64encode(bytes(shift) + data).decode()
        core = encoded[first : bits // 6]
        if len(core) >= _MIN_CORE_CHARS or (shift == 0 and len(core) >= 4):
            yield core, int(shift > 0), int(bits % 6 > 0)


def _around(reading: Reading, core: str, before: int, after: int) -> Iterator[Span]:
    text = reading.in_one_alphabet
    for place in _places(text, core):
        start, end = place, place + len(core)
        if before and start and text[start - 1] in _BASE64:
            start -= 1
        if after and end < len(text) and text[end] in _BASE64:
            end += 1
        yield from reading.spans((start,), end - start)


def _places(text: str, wanted: str) -> Iterator[int]:
    place = text.find(wanted)
    while place >= 0:
        yield place
        place = text.find(wanted, place + len(wanted))


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
