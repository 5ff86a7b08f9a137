# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The open questions to people: updated in the transactions of the log, listed a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from weftline.store.awaits import KINDS, AwaitFilter, OpenAwait
from weftline.store.columns import Columns
from weftline.store.database import SqlValue
from weftline.store.rows import Write
from weftline.store.sqlite import statements as sql
from weftline.store.sqlite.texts import rows_of

_INSERT = (
    "INSERT INTO open_awaits (workspace, run, id, root, kind, tool, opened_at, deadline_at, body) VALUES ",
    9,
    "",
)
_COLUMNS = (
    "a.run, r.salt, a.id, a.workspace, a.root, coalesce(top.salt, ''), coalesce(r.thread, top.thread),"
    " coalesce(r.agent, top.agent), r.name, a.kind, a.opened_at,"
    " a.deadline_at, a.key, length(a.body)"
)


def keep(db: apsw.Connection, writes: Sequence[Write]) -> None:
    """Adds the awaits that these writes open, and removes those that they answer, in the caller's transaction."""
    rows: list[tuple[SqlValue, ...]] = [
        (new.workspace, write.key, new.id, new.root, new.kind, new.tool, new.opened_at, new.deadline_at, new.body)
        for write in writes
        for new in write.awaits
        if new.id not in write.answered
    ]
    if rows:
        sql.run_many(db, _INSERT, rows)
    for write in writes:
        for id in write.answered:
            db.execute(
                "DELETE FROM open_awaits WHERE run = ? AND id = ?"
                " AND workspace = (SELECT workspace FROM runs WHERE key = ?)",
                (write.key, id, write.key),
            )


def awaits(db: apsw.Connection, wanted: AwaitFilter) -> list[OpenAwait]:
    where, values = ["a.workspace = ?", "(a.run, a.id) > (?, ?)"], list[SqlValue]([wanted.workspace, *wanted.after])

    def add(condition: str, *given: SqlValue) -> None:
        where.append(condition)
        values.extend(given)

    if wanted.id is not None:
        add("a.id = ?", wanted.id)
    if wanted.run is not None:
        add("a.run = ?", wanted.run)
    if wanted.root is not None:
        add("(a.root = ? OR a.run = ?)", wanted.root, wanted.root)
    if wanted.thread is not None:
        add("coalesce(r.thread, top.thread) = ?", wanted.thread)
    if wanted.agents:
        add(f"coalesce(r.agent, top.agent) IN ({','.join('?' * len(wanted.agents))})", *wanted.agents)
    if wanted.kinds:
        add(f"a.kind IN ({','.join('?' * len(wanted.kinds))})", *wanted.kinds)
    if wanted.due_before is not None:
        add("a.deadline_at < ?", wanted.due_before)
    if wanted.tool is not None:
        add("a.tool = ?", wanted.tool)
    if wanted.opened_until is not None:
        add("a.opened_at <= ?", wanted.opened_until)
    query = (
        f"SELECT {_COLUMNS} FROM open_awaits AS a JOIN runs AS r ON r.key = a.run"
        f" LEFT JOIN runs AS top ON top.key = a.root WHERE {' AND '.join(where)} ORDER BY a.run, a.id LIMIT ?"
    )
    rows = rows_of(db, query, (*values, wanted.limit))
    left = wanted.max_bytes
    found: list[OpenAwait] = []
    for *columns, key, size in rows:
        reads = left is None or size <= left or (not found and wanted.max_bytes != 0)
        # One by one, so that bodies beyond the page are not read.
        body: Any = db.execute("SELECT body FROM open_awaits WHERE key = ?", (key,)).fetchone() if reads else (b"",)
        found.append(_open_await(columns, body[0], unread=not reads))
        if left is not None:
            left = left - size if reads else 0
    return found


def _open_await(columns: Sequence[Any], body: bytes, *, unread: bool) -> OpenAwait:
    run, salt, id, workspace, root, root_salt, thread, agent, name, kind, opened_at, deadline_at = columns
    read = Columns()
    return OpenAwait(
        run,
        read.text("salt", salt),
        id,
        workspace,
        root,
        read.text("salt", root_salt),
        thread,
        read.text_or_none("agent", agent),
        read.text("name", name),
        read.one_of("kind", kind, KINDS),
        read.time("opened_at", opened_at),
        read.time_or_none("deadline_at", deadline_at),
        body,
        unread=unread,
        damaged=read.damaged,
    )
