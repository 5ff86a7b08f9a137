"""Lists of runs, and runs by the beginning of their ids, wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from weftline import labels
from weftline.cli.reach import Reached, named
from weftline.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from weftline.store.base import ReadStore

_PAGE = 200


class RunQuery(Struct, frozen=True, kw_only=True):
    """Which runs to list; all without a `limit`."""

    limit: int | None
    cursor: str | None = None
    status: str | None = None
    agent: str | None = None
    session: str | None = None
    children: bool = False
    """With a session: also the runs of subagents below its runs."""
    in_doubt: bool = False
    """Only those with a call that may or may not have happened. There is no index for these."""

    def page(self, found: int) -> int:
        """Returns how many to request after this many were found."""
        return _PAGE if self.limit is None or self.in_doubt else min(_PAGE, self.limit - found)

    def matching(self, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [run for run in runs if run.get("inDoubt")] if self.in_doubt else list(runs)


class RunList(Struct, frozen=True):
    runs: list[dict[str, Any]]
    next_cursor: str | None
    """Where the list continues; None at its end."""


def path_of(run_id: str) -> str:
    return f"/agent-runs/{named(run_id)}"


def list_runs(at: Reached, wanted: RunQuery) -> RunList:
    """Lists runs, newest first."""
    found: list[dict[str, Any]] = []
    cursor = wanted.cursor
    while wanted.limit is None or len(found) < wanted.limit:
        asked = {
            "status": wanted.status,
            "agentId": wanted.agent,
            "sessionId": wanted.session,
            "children": "true" if wanted.children else None,
            "cursor": cursor,
        }
        page = at.get("/agent-runs", limit=wanted.page(len(found)), **asked)
        found += wanted.matching(page["runs"])
        if wanted.limit is not None and len(found) > wanted.limit:
            found = found[: wanted.limit]
            up_to = [run["id"] for run in page["runs"]].index(found[-1]["id"]) + 1
            cursor = at.get("/agent-runs", limit=up_to, **asked)["nextCursor"]
            break
        cursor = page["nextCursor"]
        if cursor is None:
            break
    return RunList(found, cursor)


def whole_id(at: Reached, start: str) -> str:
    """Returns the id that `start` is, or begins. Raises `InvalidRequest` if it matches several runs."""
    if not labels.is_possible(start):
        if not at.same_version:
            return start  # the server reports any problem with it
        raise NotFound(f"There is no run {start!r}.")
    if not at.same_version and at.exists(path_of(start)):
        return start
    page = at.get("/agent-runs", idPrefix=start, limit=2)
    # A server without `idPrefix` also lists others.
    found = [run["id"] for run in page["runs"] if run["id"].startswith(start)]
    if start in found or (len(found) > 1 and at.exists(path_of(start))):
        return start
    return _only(found, start)


async def stored_id(store: ReadStore, start: str, *, workspace: int | None) -> str:
    """The same in a store that is open for reading."""
    from weftline.runtime import ids
    from weftline.runtime.reads.finding import row_of, runs_with_prefix
    from weftline.store.rows import RunFilter

    if await row_of(store.log, start, workspace=workspace) is not None:
        return start
    if not labels.is_possible(start):
        raise NotFound(f"There is no run {start!r}.")
    rows = await runs_with_prefix(store.log.runs, start, RunFilter(workspace=workspace, limit=2))
    return _only([ids.run_id(row.key, row.salt) for row in rows], start)


def _only(found: list[str], start: str) -> str:
    if not found:
        raise NotFound(f"There is no run whose id begins with {start!r}.")
    if len(found) > 1:
        raise InvalidRequest(f"{start!r} matches several runs, such as {found[0]} and {found[1]}; give more of the id.")
    return found[0]
