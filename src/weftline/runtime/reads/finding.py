"""Finds runs by their public ids, as clients send them."""

from __future__ import annotations

from typing import Protocol

from weftline import run_ids
from weftline.errors import InvalidRequest, WeftlineError
from weftline.runtime import ids
from weftline.store.base import LogReader
from weftline.store.rows import RunRow


class Rows(Protocol):
    async def run(self, key: int) -> RunRow | None: ...
    async def given(self, run_id: str, *, workspace: int | None) -> list[int]: ...


async def row_of(rows: Rows, run_id: str, *, workspace: int | None) -> RunRow | None:
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


async def given_key(rows: Rows, run_id: str, *, workspace: int | None) -> int | None:
    """The same for an id that was chosen by the client."""
    found = await rows.given(run_id, workspace=workspace) if run_ids.is_possible(run_id) else []
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
