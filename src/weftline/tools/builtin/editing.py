"""Replaces text in a file. Pure functions on bytes, so that content that is not text stays as it is.

An `old_string` is looked for as it was written; then without the line numbers of `read_file`, if it was pasted with
them; then with the line breaks of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations, islice, pairwise

from weftline import prompts

_NUMBERED = re.compile(r"\s*(\d+)\t(.*)", re.DOTALL)
_PREVIEW_LINES = 10
_COMPARED_LINES = 5_000
_COMPARED_CHARS = 200
_MAX_COMPARED = 200
"""How many lines are compared in detail for a preview; the others only by their letters."""
_NEAR = 0.4
_TRIALS = 200
"""How many ways of undoing edits are tried."""


@dataclass(frozen=True)
class Edit:
    """`old_string` becomes `new_string`, once or, with `replace_all`, everywhere."""

    old_string: str
    new_string: str
    replace_all: bool = False


class EditRefused(Exception):
    """The edit cannot be applied; the message is for the model."""

    def __init__(self, reason: str, *, number: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.number = number


def applied(data: bytes, edit: Edit) -> tuple[bytes, int]:
    """Returns the content after the edit, and how many places were replaced. Raises `EditRefused`."""
    if not edit.old_string:
        raise EditRefused(prompts.files.OLD_STRING_EMPTY)
    if edit.old_string == edit.new_string:
        raise EditRefused(prompts.files.NOTHING_TO_CHANGE)
    for old, new in _spellings(edit, crlf=b"\r\n" in data):
        first = data.find(old)
        if first < 0:
            continue
        if edit.replace_all:
            return data.replace(old, new), data.count(old)
        if data.find(old, first + 1) >= 0:
            raise EditRefused(prompts.files.not_unique(sum(1 for _ in _places(data, old))))
        return data[:first] + new + data[first + len(old) :], 1
    raise EditRefused(prompts.files.not_found(nearest(data, edit.old_string)))


def all_applied(data: bytes, edits: Sequence[Edit]) -> tuple[bytes, int]:
    """Returns the content after all edits, each on the result of the one before, and how many places were replaced.

    Raises:
        EditRefused: with the number of the first edit that cannot be applied.
    """
    replaced = 0
    for number, edit in enumerate(edits, 1):
        try:
            data, count = applied(data, edit)
        except EditRefused as refused:
            raise EditRefused(refused.reason, number=number) from None
        replaced += count
    return data, replaced


def texts_before(data: bytes, edits: Sequence[Edit]) -> tuple[list[bytes], bool]:
    """Returns contents from which the edits would have produced `data`, and whether these are all."""
    if any(not edit.new_string for edit in edits):
        return [], False  # removed text could have been anywhere
    trials = [_TRIALS]
    found: list[bytes] = []
    for before in _undone(data, list(edits), trials):
        try:
            if before not in found and all_applied(before, edits)[0] == data:
                found.append(before)
        except EditRefused:
            continue
    return found, trials[0] > 0


def _undone(data: bytes, edits: list[Edit], trials: list[int]) -> Iterator[bytes]:
    if not edits:
        yield data
        return
    *earlier, last = edits
    for old, new in _spellings(last, crlf=True):
        for places in _subsets(data, new) if last.replace_all else ((place,) for place in _places(data, new)):
            trials[0] -= 1
            if trials[0] <= 0:
                return
            if all(later - place >= len(new) for place, later in pairwise(places)):
                yield from _undone(_put_back(data, places, old, len(new)), earlier, trials)


def _subsets(data: bytes, new: bytes) -> Iterator[tuple[int, ...]]:
    """Yields the sets of places that a `replace_all` may have written: all, or some if others existed before."""
    apart: list[int] = []
    for place in _places(data, new):
        if not apart or place - apart[-1] >= len(new):
            apart.append(place)
    if apart:
        yield tuple(apart)
    places = list(islice(_places(data, new), _TRIALS))
    yield from (chosen for size in range(len(places), 0, -1) for chosen in combinations(places, size))


def _put_back(data: bytes, places: Sequence[int], old: bytes, length: int) -> bytes:
    for place in reversed(places):
        data = data[:place] + old + data[place + length :]
    return data


def _spellings(edit: Edit, *, crlf: bool) -> list[tuple[bytes, bytes]]:
    """Returns the possible readings of an edit, the most literal first."""
    texts = [(edit.old_string, edit.new_string)]
    plain = _without_numbers(edit.old_string, edit.new_string)
    if plain is not None:
        texts.append(plain)
    pairs = [(old.encode("utf-8", "replace"), new.encode("utf-8", "replace")) for old, new in texts]
    if crlf:
        pairs += [(_crlf(old), _crlf(new)) for old, new in pairs if b"\n" in old]
    return pairs


def _crlf(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _without_numbers(old: str, new: str) -> tuple[str, str] | None:
    """Returns both without the prefixes of `read_file`, if all lines of `old` have them, in order."""
    lines = [_NUMBERED.fullmatch(line) for line in old.removesuffix("\n").split("\n")]
    numbered = [found for found in lines if found is not None]
    if len(numbered) < len(lines):
        return None
    first = int(numbered[0][1]) if len(numbered[0][1]) < 10 else -1
    if first < 0 or [found[1] for found in numbered] != [str(first + step) for step in range(len(numbered))]:
        return None
    plain = "\n".join(found[2] for found in numbered) + ("\n" if old.endswith("\n") else "")
    written = new.split("\n")
    # A number far from these belongs to the new line itself.
    return plain, "\n".join(_without_number(line, first, first + len(numbered) + len(written)) for line in written)


def _without_number(line: str, lowest: int, highest: int) -> str:
    found = _NUMBERED.fullmatch(line)
    if found is None or len(found[1]) > 9 or not lowest <= int(found[1]) <= highest:
        return line
    return found[2]


def _places(data: bytes, wanted: bytes) -> Iterator[int]:
    place = data.find(wanted)
    while place >= 0:
        yield place
        place = data.find(wanted, place + 1)


def nearest(data: bytes, old: str) -> str:
    """Returns the lines most similar to `old`, with their numbers; empty if there are none."""
    plain = _without_numbers(old, "")
    sought = [line for line in (plain[0] if plain else old).split("\n") if line.strip()][:1]
    if not sought:
        return ""
    lines = [line.decode("utf-8", "replace").rstrip("\r") for line in data.split(b"\n")[:_COMPARED_LINES]]
    best, best_ratio, looks = -1, _NEAR, _MAX_COMPARED
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(sought[0].strip()[:_COMPARED_CHARS])
    for number, line in enumerate(lines):
        matcher.set_seq1(line.strip()[:_COMPARED_CHARS])
        if matcher.real_quick_ratio() <= best_ratio or matcher.quick_ratio() <= best_ratio:
            continue
        looks -= 1
        ratio = matcher.ratio()
        if ratio > best_ratio:
            best, best_ratio = number, ratio
        if not looks:
            break
    if best < 0:
        return ""
    count = min(_PREVIEW_LINES, old.removesuffix("\n").count("\n") + 1)
    excerpt = lines[best : best + count]
    return "\n".join(f"{number}\t{line[:500]}" for number, line in enumerate(excerpt, best + 1))
