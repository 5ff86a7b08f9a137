"""Finds runs by the beginning of their ids, as people type them.

A generated id is the run's key in hexadecimal, followed by a random part of fixed length, so a prefix stands for one
range of keys for each number of digits that the key may have. Ids chosen by clients have an index of their own.
"""

from __future__ import annotations

import re
from typing import Protocol

from msgspec.structs import replace

from weftline import run_ids
from weftline.runtime import ids
from weftline.store.rows import RunFilter, RunRow

PATTERN = rf"[A-Za-z0-9_-]{{1,{run_ids.MAX_CHARS}}}"
_OURS = re.compile(r"r|ru|run|run_[0-9a-f]{0,27}")
_RANDOM_DIGITS = len(ids.new_salt())


class Runs(Protocol):
    async def runs(self, wanted: RunFilter) -> list[RunRow]: ...


def is_prefix(text: str) -> bool:
    return run_ids.is_possible(text)


async def runs_with_prefix(read: Runs, prefix: str, wanted: RunFilter) -> list[RunRow]:
    """The runs of the page `wanted` whose id begins with `prefix`, newest first. Takes a look-up per digit of a key."""
    found = await read.runs(replace(wanted, given_prefix=prefix))
    if _OURS.fullmatch(prefix):
        found += await _with_our_prefix(read, prefix, wanted)
        found.sort(key=lambda row: row.key, reverse=True)
    return found[: wanted.limit]


async def _with_our_prefix(read: Runs, prefix: str, wanted: RunFilter) -> list[RunRow]:
    wanted = replace(wanted, not_given=True)
    newest = await read.runs(replace(wanted, limit=1))
    if not newest:
        return []
    digits = prefix[len("run_") :]
    longest = len(f"{newest[0].key:x}")
    found: list[RunRow] = []
    for length in range(longest, max(0, len(digits) - _RANDOM_DIGITS - 1), -1):
        low, high = _keys(digits, length)
        before = high + 1 if wanted.before is None else min(high + 1, wanted.before)
        rows = await read.runs(replace(wanted, before=before, limit=wanted.limit - len(found)))
        found += [row for row in rows if row.key >= low and ids.run_id(row.key, row.salt).startswith(prefix)]
        if len(found) >= wanted.limit:
            break
    return found


def _keys(digits: str, length: int) -> tuple[int, int]:
    """The least and the greatest key of `length` digits whose id may begin with `digits`."""
    known = digits[:length]
    unknown = 4 * (length - len(known))
    low = int(known or "0", 16) << unknown
    return low, low + (1 << unknown) - 1
