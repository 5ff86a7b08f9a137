"""What an operator does to a whole store: remove old logs, shrink the file, find what a newer version has to continue.

Work that takes long is done for about a second at a time, so that whoever asks for it can be stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from time import monotonic
from typing import TypeVar

from msgspec import Struct

from weftline.runtime import ids
from weftline.runtime.deploys import left_alone
from weftline.runtime.engine import Engine
from weftline.runtime.reads.reading import StoredRuns
from weftline.store.base import Store
from weftline.store.rows import RunFilter
from weftline.workspace import delivering, workspaces
from weftline.workspace.context import Workspaces

T = TypeVar("T")

_MAX_S = 1.0
_UNFINISHED = ("queued", "running", "paused")


class Trimmed(Struct, frozen=True):
    """`after` is the last key examined, 0 if no run is left; `runs` is how many had something to remove."""

    after: int
    runs: int


class UnsupportedRun(Struct):
    id: str
    name: str
    status: str
    unknown: str
    """What this version does not know about it."""


async def trim(at: Workspaces, logs: Engine, *, before: int, after: int, workspace: str | None = None) -> Trimmed:
    """Removes the logs of the next runs after the key `after` that ended before that time; at the end, old deliveries
    too.
    """
    key = None if workspace is None else await workspaces.find(at, workspace)
    trimmed = 0
    until_s = monotonic() + _MAX_S
    while monotonic() < until_s:
        after, count = await _with_pause(logs.trim(before=before, after=after, workspace=key))
        trimmed += count
        if not after:
            while await _with_pause(delivering.forget_deliveries(at, before=before, workspace=key)):
                pass
            break
    return Trimmed(after, trimmed)


async def shrink(store: Store) -> int:
    """Shrinks the store for a moment; returns by how many bytes, 0 if there is nothing left to do."""
    freed = 0
    until_s = monotonic() + _MAX_S
    while monotonic() < until_s and (count := await _with_pause(store.shrink())):
        freed += count
    return freed


async def unsupported_runs(at: Workspaces, runs: StoredRuns, *, workspace: str | None = None) -> list[UnsupportedRun]:
    """Returns unfinished runs that this version leaves to a newer one, which has written to them or to others of their
    tree.
    """
    key = None if workspace is None else await workspaces.find(at, workspace)
    found: list[UnsupportedRun] = []
    before: int | None = None
    while rows := await runs.logs.runs(RunFilter(workspace=key, statuses=_UNFINISHED, before=before)):
        before = rows[-1].key
        found += [
            UnsupportedRun(ids.run_id(row.key, row.salt), row.name, row.status, unknown)
            for row in rows
            if (unknown := await left_alone(runs.logs, row))
        ]
    return found


async def _with_pause(work: Awaitable[T]) -> T:
    """Pauses after the work for as long as it took, so that others have the store for at least half of the time."""
    began_s = monotonic()
    value = await work
    await asyncio.sleep(monotonic() - began_s)
    return value
