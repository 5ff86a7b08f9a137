"""Effects of threads: what is to run later, and what became of it.

    pending ──▶ running ──▶ executed
       │           │  ╰───▶ failed
       │           ╰──▶ pending, when the process died or stopped
       ╰──▶ canceled

Each arrow is one conditional update, so that of two who want the same effect one has it.

When the process died, everything that ran may be why. From then on these begin one at a time, and each is on trial for
a while: if the process dies again in that time, it alone is charged.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from weftline.store import crashpoints
from weftline.store.database import Columns, Query, Row, SqlValue, one, statement

EffectStatus: TypeAlias = Literal["pending", "running", "executed", "canceled", "failed"]
_STATUSES = ("failed", "pending", "running", "executed", "canceled")
MAX_DEATHS = 3
"""An effect during which the process died so often is not begun again."""
DEATHS = "worker_error: the process died while it ran"
_COLUMNS = (
    "key, id, workspace, thread, name, args, status, due_at, created_at, settled_at, attempts, deaths, origin, error"
)


class EffectRow(Struct, frozen=True):
    key: int
    id: str
    workspace: int
    thread: int
    name: str
    args: bytes
    """JSON."""
    status: EffectStatus
    due_at: int
    created_at: int
    settled_at: int | None
    attempts: int
    """How often it has begun."""
    deaths: int
    """How often the process died while it ran, and it may be why."""
    origin: bytes | None
    """Made of what has scheduled it: the same again finds this row."""
    error: str
    damaged: str = ""
    """The first damaged column, or ""; see `weftline.store.database`."""


class NewEffect(Struct, frozen=True, kw_only=True):
    id: str
    workspace: int
    thread: int
    name: str
    args: bytes
    due_at: int
    origin: bytes | None = None


class EffectFilter(Struct, frozen=True, kw_only=True):
    """The effects of a thread, and where a page of them begins: below the key `before`."""

    thread: int
    name: str | None = None
    status: EffectStatus | None = None
    before: int | None = None
    limit: int | None = None


def insert(new: NewEffect, *, now: int) -> Query[EffectRow]:
    crashpoints.hit(("effect.scheduled",), "before")
    row = yield from one(
        "INSERT INTO thread_effects (id, workspace, thread, name, args, status, due_at, created_at, origin)"
        f" VALUES ($1, $2, $3, $4, $5, 'pending', $6, $7, $8) RETURNING {_COLUMNS}",
        new.id,
        new.workspace,
        new.thread,
        new.name,
        new.args,
        new.due_at,
        now,
        new.origin,
    )
    assert row is not None
    return _row(row)


def by_key(key: int) -> Query[EffectRow | None]:
    row = yield from one(f"SELECT {_COLUMNS} FROM thread_effects WHERE key = $1", key)
    return None if row is None else _row(row)


def by_id(thread: int, id: str) -> Query[EffectRow | None]:
    row = yield from one(f"SELECT {_COLUMNS} FROM thread_effects WHERE thread = $1 AND id = $2", thread, id)
    return None if row is None else _row(row)


def by_origin(thread: int, origin: bytes) -> Query[EffectRow | None]:
    row = yield from one(f"SELECT {_COLUMNS} FROM thread_effects WHERE thread = $1 AND origin = $2", thread, origin)
    return None if row is None else _row(row)


def page(wanted: EffectFilter) -> Query[list[EffectRow]]:
    """Newest first."""
    values: list[SqlValue] = [wanted.thread]
    where = "thread = $1"
    for test, value in (("name =", wanted.name), ("status =", wanted.status), ("key <", wanted.before)):
        if value is not None:
            values.append(value)
            where += f" AND {test} ${len(values)}"
    limit = ""
    if wanted.limit is not None:
        values.append(wanted.limit)
        limit = f" LIMIT ${len(values)}"
    rows = yield from statement(
        f"SELECT {_COLUMNS} FROM thread_effects WHERE {where} ORDER BY key DESC{limit}", *values
    )
    return [_row(row) for row in rows]


def count_pending(thread: int) -> Query[int]:
    row = yield from one("SELECT count(*) FROM thread_effects WHERE thread = $1 AND status = 'pending'", thread)
    return 0 if row is None else row[0]


def due_workspaces(now: int) -> Query[list[int]]:
    """The workspaces in which an effect is due."""
    rows = yield from statement(
        "SELECT DISTINCT workspace FROM thread_effects WHERE status = 'pending' AND due_at <= $1", now
    )
    return [row[0] for row in rows]


def next_due(after: int) -> Query[int | None]:
    row = yield from one("SELECT min(due_at) FROM thread_effects WHERE status = 'pending' AND due_at > $1", after)
    return None if row is None else row[0]


def due(now: int, *, workspace: int) -> Query[int | None]:
    """The effect that is to begin next; None if there is none, or it has to wait for another one's trial."""
    row = yield from one(
        "SELECT key FROM thread_effects WHERE status = 'pending' AND workspace = $1 AND due_at <= $2 AND (deaths = 0 OR"
        " NOT EXISTS (SELECT 1 FROM thread_effects AS other WHERE other.status = 'running' AND other.on_trial = 1))"
        " ORDER BY due_at, key LIMIT 1",
        workspace,
        now,
    )
    return None if row is None else row[0]


def begin(key: int) -> Query[EffectRow | None]:
    """Begins an effect. None if it is not pending any more."""
    crashpoints.hit(("effect.begun",), "before")
    row = yield from one(
        "UPDATE thread_effects SET status = 'running', attempts = attempts + 1,"
        " on_trial = CASE WHEN deaths > 0 THEN 1 ELSE 0 END"
        f" WHERE key = $1 AND status = 'pending' RETURNING {_COLUMNS}",
        key,
    )
    return None if row is None else _row(row)


def settle(row: EffectRow, status: EffectStatus, *, error: str, now: int) -> Query[None]:
    """Records how an attempt has ended."""
    crashpoints.hit(("effect.settled",), "before")
    yield from statement(
        "UPDATE thread_effects SET status = $1, error = $2, settled_at = $3"
        " WHERE key = $4 AND status = 'running' AND attempts = $5",
        status,
        error,
        now,
        row.key,
        row.attempts,
    )


def acquit(row: EffectRow) -> Query[None]:
    """Ends the trial of an effect that goes on."""
    yield from statement(
        "UPDATE thread_effects SET on_trial = 0 WHERE key = $1 AND attempts = $2", row.key, row.attempts
    )


def put_back(row: EffectRow) -> Query[None]:
    """Makes an effect pending again whose handler was stopped with the process."""
    yield from statement(
        "UPDATE thread_effects SET status = 'pending' WHERE key = $1 AND status = 'running' AND attempts = $2",
        row.key,
        row.attempts,
    )


def cancel(thread: int, id: str, *, now: int) -> Query[bool]:
    """Cancels a pending effect; returns whether there was one."""
    row = yield from one(
        "UPDATE thread_effects SET status = 'canceled', settled_at = $1"
        " WHERE thread = $2 AND id = $3 AND status = 'pending' RETURNING key",
        now,
        thread,
        id,
    )
    return row is not None


def cancel_all(thread: int, *, now: int) -> Query[None]:
    yield from statement(
        "UPDATE thread_effects SET status = 'canceled', settled_at = $1 WHERE thread = $2 AND status = 'pending'",
        now,
        thread,
    )


def left_running(*, now: int) -> Query[None]:
    """Takes up what a process that died has left running. Called before anything begins in this one."""
    tried = yield from one("SELECT 1 FROM thread_effects WHERE status = 'running' AND on_trial = 1")
    yield from statement(
        "UPDATE thread_effects SET status = 'pending', deaths = deaths + 1 WHERE status = 'running' AND on_trial = $1",
        0 if tried is None else 1,
    )
    yield from statement("UPDATE thread_effects SET status = 'pending' WHERE status = 'running'")
    yield from statement(
        "UPDATE thread_effects SET status = 'failed', error = $1, settled_at = $2"
        " WHERE status = 'pending' AND deaths >= $3",
        DEATHS,
        now,
        MAX_DEATHS,
    )


def keep_latest(thread: int, number: int) -> Query[None]:
    """Forgets all but the latest of the effects that are over."""
    yield from statement(
        "DELETE FROM thread_effects WHERE thread = $1 AND status IN ('executed', 'failed', 'canceled') AND key <="
        " (SELECT key FROM thread_effects WHERE thread = $1 AND status IN ('executed', 'failed', 'canceled')"
        " ORDER BY key DESC LIMIT 1 OFFSET $2)",
        thread,
        number,
    )


def _row(row: Row) -> EffectRow:
    effect, read = EffectRow(*row), Columns()
    return replace(
        effect,
        id=read.text("id", effect.id),
        name=read.text("name", effect.name),
        args=read.json("args", effect.args),
        status=cast(EffectStatus, read.one_of("status", effect.status, _STATUSES)),
        due_at=read.time("due_at", effect.due_at),
        created_at=read.time("created_at", effect.created_at),
        settled_at=read.time_or_none("settled_at", effect.settled_at),
        error=read.text("error", effect.error),
        damaged=read.damaged,
    )
