# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Reading: short look-ups on the caller's thread, each statement finished before the function returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
from msgspec import Struct

from weftline.store.base import DeltaRow, EntryRow
from weftline.store.records.threads import ThreadRow


class RunRow(Struct):
    key: int
    salt: str
    workspace: int
    thread: int | None
    name: str
    agent: str | None
    metadata: str
    status: str
    created_at: int
    started_at: int | None
    ended_at: int | None
    next_seq: int
    version: int
    epoch: int
    due_at: int | None
    rules: int
    state: bytes
    recovering: int
    deaths: int


RUN_COLUMNS = (
    "key, salt, workspace, thread, name, agent, metadata, status, created_at, started_at, ended_at, next_seq,"
    " version, epoch, due_at, rules, state, recovering, deaths"
)
THREAD_COLUMNS = "key, salt, workspace, name, agent, spec, metadata, created_at, last_used_at, ended_at, active_run"
_RUN = f"SELECT {RUN_COLUMNS} FROM runs"
_THREAD = f"SELECT {THREAD_COLUMNS} FROM threads"


class Reader:
    """Reads what is committed. Cheap enough (tens of microseconds) to be used on the loop."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    @property
    def db(self) -> apsw.Connection:
        """For the look-ups that stand beside what they belong to, in modules of this package."""
        return self._db

    def close(self) -> None:
        self._db.close()

    def run(self, key: int) -> RunRow | None:
        row = self._one(f"{_RUN} WHERE key = ?", (key,))
        return RunRow(*row) if row else None

    def head(self, key: int) -> tuple[int, bool] | None:
        """The next seq of a run, and whether the run has ended."""
        return self._one("SELECT next_seq, ended_at IS NOT NULL FROM runs WHERE key = ?", (key,))

    def page(self, run: int, *, after: int, limit: int) -> tuple[int, bool, list[EntryRow], list[DeltaRow]] | None:
        """The last seq of a run, whether it has ended, and its entries and deltas after a cursor: one view of its log,
        although retention may be at work."""
        self._db.execute("SAVEPOINT page")
        try:
            head = self.head(run)
            if head is None:
                return None
            upto = head[0] - 1
            entries = self.entries(run, after=after, upto=upto, limit=limit)
            return upto, bool(head[1]), entries, self.deltas(run, after=after, upto=upto, limit=limit)
        finally:
            self._db.execute("RELEASE page")

    def owner(self, key: int) -> tuple[str, int] | None:
        """The random part of a run's id, and its workspace."""
        return self._one("SELECT salt, workspace FROM runs WHERE key = ?", (key,))

    def last_run_key(self) -> int:
        return self._int("SELECT coalesce(max(key), 0) FROM runs")

    def under_way(self, *, limit: int, after: int = 0) -> list[tuple[int, int, int]]:
        """Runs that are due at once: key, recoveries begun, deaths. Reads scalar columns only."""
        return self._all(
            "SELECT key, recovering, deaths FROM runs WHERE due_at = 0 AND key > ? ORDER BY key LIMIT ?", (after, limit)
        )

    def due(self, now: int, *, limit: int) -> list[int]:
        """Runs whose time has come, the earliest first."""
        rows = self._all("SELECT key FROM runs WHERE due_at > 0 AND due_at <= ? ORDER BY due_at LIMIT ?", (now, limit))
        return [row[0] for row in rows]

    def next_due(self, after: int) -> int | None:
        row = self._one("SELECT min(due_at) FROM runs WHERE due_at > ?", (after,))
        return row[0] if row else None

    def entries(self, run: int, *, after: int, upto: int, limit: int) -> list[EntryRow]:
        return self._all(
            "SELECT seq, at, kind, head, body FROM entries WHERE run = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
            (run, after, upto, limit),
        )

    def deltas(self, run: int, *, after: int, upto: int, limit: int) -> list[DeltaRow]:
        """Rows with at least one delta in (after, upto]; their bodies may begin before and end after it."""
        return self._all(
            "SELECT seq, count, at, kind, bodies FROM deltas WHERE run = ? AND seq + count - 1 > ? AND seq <= ?"
            " AND seq > ? ORDER BY seq LIMIT ?",
            (run, after, upto, self._delta_start(run, after), limit),
        )

    def _delta_start(self, run: int, after: int) -> int:
        """The row that may hold seq `after` + 1 in its middle: looked up so that the scan is by index alone."""
        if after == 0:
            return 0
        row = self._one("SELECT seq FROM deltas WHERE run = ? AND seq <= ? ORDER BY seq DESC LIMIT 1", (run, after))
        return row[0] - 1 if row else after

    def facts(self, run: int, *, after: int = 0) -> list[EntryRow]:
        return self._all(
            "SELECT seq, at, kind, head, body FROM entries WHERE run = ? AND seq > ? ORDER BY seq", (run, after)
        )

    def of_kinds(self, run: int, kinds: Sequence[str]) -> list[EntryRow]:
        marks = ",".join("?" * len(kinds))
        return self._all(
            f"SELECT seq, at, kind, head, body FROM entries WHERE run = ? AND kind IN ({marks}) ORDER BY seq",
            (run, *kinds),
        )

    def last_of_kind(self, run: int, kind: str, *, limit: int) -> list[EntryRow]:
        """The newest entries of a kind, the newest first."""
        return self._all(
            "SELECT seq, at, kind, head, body FROM entries WHERE run = ? AND kind = ? ORDER BY seq DESC LIMIT ?",
            (run, kind, limit),
        )

    def entry(self, run: int, seq: int) -> EntryRow | None:
        return self._one("SELECT seq, at, kind, head, body FROM entries WHERE run = ? AND seq = ?", (run, seq))

    def thread(self, key: int) -> ThreadRow | None:
        row = self._one(f"{_THREAD} WHERE key = ?", (key,))
        return ThreadRow(*row) if row else None

    def run_secrets(self, run: int) -> bytes | None:
        """The sealed secrets of a run that has not ended."""
        row = self._one("SELECT secrets FROM runs WHERE key = ?", (run,))
        return row[0] if row else None

    def thread_secrets(self, thread: int) -> bytes | None:
        row = self._one("SELECT secrets FROM threads WHERE key = ?", (thread,))
        return row[0] if row else None

    def thread_messages(self, thread: int, *, upto: int | None = None) -> list[bytes]:
        rows = self._all(
            "SELECT message FROM thread_messages WHERE thread = ? AND pos <= ? ORDER BY pos",
            (thread, 2**62 if upto is None else upto),
        )
        return [row[0] for row in rows]

    def last_message(self, thread: int) -> int:
        return self._int("SELECT coalesce(max(pos), 0) FROM thread_messages WHERE thread = ?", thread)

    def ends_of_thread(self, thread: int) -> list[bytes]:
        """The heads of the terminal entries of a thread's runs."""
        rows = self._all(
            "SELECT e.head FROM runs r JOIN entries e ON e.run = r.key AND e.seq = r.next_seq - 1"
            " WHERE r.thread = ? AND r.ended_at IS NOT NULL ORDER BY r.place",
            (thread,),
        )
        return [row[0] for row in rows]

    def unfinished_of_thread(self, thread: int) -> list[int]:
        rows = self._all("SELECT key FROM runs WHERE thread = ? AND ended_at IS NULL ORDER BY place", (thread,))
        return [row[0] for row in rows]

    def ended_with_runs(self) -> list[int]:
        """Threads that have ended while runs of theirs have not: who ended them died before they were cancelled."""
        rows = self._all("SELECT key FROM threads WHERE ended_at IS NOT NULL AND active_run IS NOT NULL")
        return [row[0] for row in rows]

    def workspace(self, slug: str) -> int | None:
        row = self._one("SELECT key FROM workspaces WHERE slug = ?", (slug,))
        return row[0] if row else None

    def slug(self, workspace: int) -> str | None:
        row = self._one("SELECT slug FROM workspaces WHERE key = ?", (workspace,))
        return row[0] if row else None

    def idempotent(self, workspace: int, route: str, key: str) -> tuple[bytes, int] | None:
        row = self._one(
            "SELECT digest, run FROM idempotency WHERE workspace = ? AND route = ? AND key = ?", (workspace, route, key)
        )
        return (row[0], row[1]) if row else None

    def pending(self, run: int) -> list[tuple[str, str, int | None]]:
        return self._all("SELECT id, kind, deadline_at FROM pending WHERE run = ? ORDER BY id", (run,))

    def unfinished(self) -> int:
        return self._int("SELECT count(*) FROM runs WHERE ended_at IS NULL")

    def _one(self, query: str, values: Sequence[int | str | bytes] = ()) -> Any:
        """The first row, or None. Rows are typed by their queries, which no checker reads."""
        return self._db.execute(query, values).fetchone()

    def _all(self, query: str, values: Sequence[int | str | bytes] = ()) -> list[Any]:
        return self._db.execute(query, values).fetchall()

    def _int(self, query: str, *values: int) -> int:
        return self._one(query, values)[0]
