"""Schedules: runs that are started at set times."""

from __future__ import annotations

from msgspec import Struct
from msgspec.json import encode

from weftline.store.database import Columns, Query, Row, one, statement

SKIP, ONCE, ALL = "skip", "once", "all"
CATCH_UP = (SKIP, ONCE, ALL)
_SUMMARY = (
    "key, id, workspace, name, agent, at, cron, timezone, catch_up, enabled, next_at, last_at, last_run, last_error,"
    " requested_by, agents, created_at, updated_at"
)
_COLUMNS = f"{_SUMMARY}, spec, secrets"


class ScheduleSummary(Struct, frozen=True):
    """A schedule without its large columns."""

    key: int
    id: str
    workspace: int
    name: str
    agent: str | None
    """The agent whose runs it starts."""
    at: int | None
    """The time of a one-off schedule; None for a cron expression."""
    cron: str
    timezone: str
    catch_up: str
    """What happens to times that were missed: `skip`, `once` or `all`."""
    enabled: bool
    next_at: int | None
    """None if it is switched off or has no further time."""
    last_at: int | None
    """The time that it was last due for."""
    last_run: str | None
    last_error: str
    """Why no run was started then; empty if one was."""
    requested_by: str
    """Who defined what it runs."""
    agents: tuple[str, ...]
    """The allow-list of that credential; empty for all."""
    created_at: int
    updated_at: int
    damaged: str
    """The first damaged column, or ""; see `weftline.store.database`."""


class ScheduleRow(ScheduleSummary, frozen=True):
    spec: bytes
    """The JSON that creates such a run; header values of tools are `[redacted]`."""
    secrets: bytes | None
    """The encrypted header values."""


class ScheduleColumns(Struct, frozen=True, kw_only=True):
    """The fields that a schedule's owner sets."""

    name: str
    agent: str | None
    at: int | None
    cron: str
    timezone: str
    catch_up: str
    enabled: bool
    next_at: int | None
    requested_by: str
    agents: tuple[str, ...]
    spec: bytes
    secrets: bytes | None


def by_id(id: str, *, workspace: int) -> Query[ScheduleRow | None]:
    row = yield from one(f"SELECT {_COLUMNS} FROM schedules WHERE id = $1 AND workspace = $2", id, workspace)
    return _schedule(row)


def by_key(key: int) -> Query[ScheduleRow | None]:
    row = yield from one(f"SELECT {_COLUMNS} FROM schedules WHERE key = $1", key)
    return _schedule(row)


def digest_of(id: str, *, workspace: int) -> Query[bytes | None]:
    """Digest of the request that created the schedule; None if there is no such schedule."""
    row = yield from one("SELECT digest FROM schedules WHERE id = $1 AND workspace = $2", id, workspace)
    return None if row is None else row[0]


def of_workspace(workspace: int) -> Query[list[ScheduleSummary]]:
    """The schedules of a workspace, oldest first."""
    rows = yield from statement(f"SELECT {_SUMMARY} FROM schedules WHERE workspace = $1 ORDER BY key", workspace)
    return [ScheduleSummary(*_summary(row, Columns())) for row in rows]


def due_workspaces(now: int) -> Query[list[int]]:
    """The workspaces in which a schedule is due."""
    rows = yield from statement("SELECT DISTINCT workspace FROM schedules WHERE next_at <= $1", now)
    return [row[0] for row in rows]


def due(now: int, *, workspace: int, after: tuple[int, int], limit: int) -> Query[list[tuple[int, int]]]:
    """The times and keys of the schedules that are due, earliest first, after the last one of the previous page."""
    rows = yield from statement(
        "SELECT next_at, key FROM schedules WHERE workspace = $1 AND next_at <= $2"
        " AND (next_at > $3 OR (next_at = $3 AND key > $4)) ORDER BY next_at, key LIMIT $5",
        workspace,
        now,
        *after,
        limit,
    )
    return [(row[0], row[1]) for row in rows]


def next_due(after: int) -> Query[int | None]:
    row = yield from one("SELECT min(next_at) FROM schedules WHERE next_at > $1", after)
    return None if row is None else row[0]


def insert(id: str, columns: ScheduleColumns, *, workspace: int, digest: bytes, now: int) -> Query[ScheduleRow]:
    row = yield from one(
        "INSERT INTO schedules (id, workspace, name, agent, at, cron, timezone, catch_up, enabled, next_at,"
        " requested_by, agents, spec, secrets, digest, last_error, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, '', $16, $16)"
        f" RETURNING {_COLUMNS}",
        id,
        workspace,
        *_given(columns),
        digest,
        now,
    )
    assert row is not None
    return _row(row)


def update(key: int, columns: ScheduleColumns, *, now: int) -> Query[ScheduleRow | None]:
    row = yield from one(
        "UPDATE schedules SET name = $1, agent = $2, at = $3, cron = $4, timezone = $5, catch_up = $6, enabled = $7,"
        " next_at = $8, requested_by = $9, agents = $10, spec = $11, secrets = $12, updated_at = $13"
        f" WHERE key = $14 RETURNING {_COLUMNS}",
        *_given(columns),
        now,
        key,
    )
    return _schedule(row)


def fired(key: int, *, at: int, run: str | None, error: str) -> Query[None]:
    """Records the outcome of a time it was due for. If no new run was started, the earlier run is kept."""
    yield from statement(
        "UPDATE schedules SET last_at = $1, last_run = coalesce($2, last_run), last_error = $3 WHERE key = $4",
        at,
        run,
        error,
        key,
    )


def move(key: int, *, next_at: int | None) -> Query[None]:
    yield from statement("UPDATE schedules SET next_at = $1 WHERE key = $2", next_at, key)


def delete(key: int) -> Query[None]:
    yield from statement("DELETE FROM schedules WHERE key = $1", key)


def _given(columns: ScheduleColumns) -> tuple[str | bytes | int | None, ...]:
    return (
        columns.name,
        columns.agent,
        columns.at,
        columns.cron,
        columns.timezone,
        columns.catch_up,
        int(columns.enabled),
        columns.next_at,
        columns.requested_by,
        encode(columns.agents).decode(),
        columns.spec,
        columns.secrets,
    )


def _schedule(row: Row | None) -> ScheduleRow | None:
    return None if row is None else _row(row)


def _row(row: Row) -> ScheduleRow:
    *summary, spec, secrets = row
    read = Columns()
    spec = read.json("spec", spec)
    values: Row = (*_summary(tuple(summary), read), spec, secrets)
    return ScheduleRow(*values)


def _summary(row: Row, read: Columns) -> Row:
    key, id, workspace, name, agent, at, cron, timezone, catch_up, enabled, *times_and_notes = row
    next_at, last_at, last_run, last_error, requested_by, agents, created_at, updated_at = times_and_notes
    values = (
        key,
        id,
        workspace,
        read.text("name", name),
        read.text_or_none("agent", agent),
        read.time_or_none("at", at),
        read.text("cron", cron),
        read.text("timezone", timezone),
        read.one_of("catch_up", catch_up, CATCH_UP),
        bool(enabled),
        read.time_or_none("next_at", next_at),
        read.time_or_none("last_at", last_at),
        read.text_or_none("last_run", last_run),
        read.text("last_error", last_error),
        read.text("requested_by", requested_by),
        read.texts("agents", agents),
        read.time("created_at", created_at),
        read.time("updated_at", updated_at),
    )
    return (*values, read.damaged)
