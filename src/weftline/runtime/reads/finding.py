"""Finds runs by their public ids, as clients send them, or by their beginnings, as people type them."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec.structs import replace

from weftline import labels
from weftline.errors import InvalidRequest, WeftlineError
from weftline.runtime import ids
from weftline.store.base import LogReader
from weftline.store.database import Database
from weftline.store.records import threads, workspaces
from weftline.store.rows import RunFilter, RunRow

_KEPT = 4096


class StoredNames:
    def __init__(self, records: Database) -> None:
        self._records = records
        self._workspaces: dict[int, str] = {}
        self._sessions: OrderedDict[int, str] = OrderedDict()

    async def workspace(self, key: int) -> str:
        slug = self._workspaces.get(key)
        if slug is None:
            slug = self._workspaces[key] = await self._records.read(workspaces.slug_of(key)) or ""
        return slug

    async def session(self, thread: int) -> str | None:
        cached = self._sessions.get(thread)
        if cached is None:
            row = await self._records.read(threads.by_key(thread))
            if row is None:
                return None
            cached = self._sessions[thread] = ids.session_id(row.key, row.salt)
            if len(self._sessions) > _KEPT:
                self._sessions.popitem(last=False)
        return cached

    async def speaker(self, thread: int) -> str | None:
        """The agent that speaks on a thread since a hand-off; None if it is the thread's own."""
        row = await self._records.read(threads.by_key(thread))
        return None if row is None else row.seat_agent


async def row_of(rows: LogReader, run_id: str, *, workspace: int | None) -> RunRow | None:
    """The run with this id, in any workspace if none is named; None if there is none, or if it belongs to another
    workspace.

    Raises `InvalidRequest` if several workspaces have a run with this id, chosen by their clients.
    """
    parsed = ids.parse(run_id, prefix="run_")
    row = None if parsed is None else await rows.run(parsed[0])
    if row is not None and parsed is not None and row.salt == parsed[1] and workspace in (None, row.workspace):
        return row
    key = await given_key(rows, run_id, workspace=workspace)
    return None if key is None else await rows.run(key)


async def given_key(rows: LogReader, run_id: str, *, workspace: int | None) -> int | None:
    """The same for an id that was chosen by the client."""
    found = await rows.given(run_id, workspace=workspace) if labels.is_possible(run_id) else []
    if len(found) > 1:
        raise InvalidRequest(f"Several workspaces have a run {run_id!r}; name the workspace.")
    return found[0] if found else None


async def public_id(store: LogReader, key: int) -> str:
    """The id of a run that is not in memory, for the log; unknown if the run cannot be read."""
    try:
        row = await store.run(key)
    except WeftlineError:
        row = None
    return "(unreadable)" if row is None else ids.run_id(row.key, row.salt)


PATTERN = rf"[A-Za-z0-9_-]{{1,{labels.MAX_CHARS}}}"
_OURS = re.compile(r"r|ru|run|run_[0-9a-f]{0,27}")
_RANDOM_DIGITS = len(ids.new_salt())


def is_prefix(text: str) -> bool:
    return labels.is_possible(text)


ReadRuns: TypeAlias = Callable[[RunFilter], Awaitable[list[RunRow]]]


async def runs_with_prefix(read: ReadRuns, prefix: str, wanted: RunFilter) -> list[RunRow]:
    """The runs of the page `wanted` whose id begins with `prefix`, newest first. Takes a look-up per digit of a key."""
    found = await read(replace(wanted, given_prefix=prefix))
    if _OURS.fullmatch(prefix):
        found += await _with_our_prefix(read, prefix, wanted)
        found.sort(key=lambda row: row.key, reverse=True)
    return found[: wanted.limit]


async def _with_our_prefix(read: ReadRuns, prefix: str, wanted: RunFilter) -> list[RunRow]:
    wanted = replace(wanted, not_given=True)
    newest = await read(replace(wanted, limit=1))
    if not newest:
        return []
    digits = prefix[len("run_") :]
    longest = len(f"{newest[0].key:x}")
    found: list[RunRow] = []
    for length in range(longest, max(0, len(digits) - _RANDOM_DIGITS - 1), -1):
        low, high = _keys(digits, length)
        before = high + 1 if wanted.before is None else min(high + 1, wanted.before)
        rows = await read(replace(wanted, before=before, limit=wanted.limit - len(found)))
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
