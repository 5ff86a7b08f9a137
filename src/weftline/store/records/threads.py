"""Threads: what was set when they were created. Their messages and runs belong to the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias
from uuid import uuid4

from msgspec import Struct, field
from msgspec.json import decode
from msgspec.structs import replace

from weftline.store import crashpoints
from weftline.store.database import Columns, Query, Row, SqlValue, one, statement

_NAMES = (
    "key",
    "salt",
    "workspace",
    "name",
    "agent",
    "metadata",
    "created_at",
    "last_used_at",
    "ended_at",
    "active_run",
    "uuid",
    "user_id",
    "parent",
    "depth",
    "seat_agent",
    "keeps",
    "revision",
)
_COLUMNS = ", ".join((*_NAMES, "length(spec)"))
_LISTED = ", ".join((*(f"threads.{name}" for name in _NAMES), "length(threads.spec)"))

Keeps: TypeAlias = Literal["exchange", "all"]
"""What a thread keeps of a run: the question and the answer, if it succeeds, or all messages of all finished turns."""
_BRANCH = b"fork"
"""Stored in place of the digest of a body."""


class ThreadRow(Struct, frozen=True):
    """A thread without its spec, which may be large."""

    key: int
    salt: str
    workspace: int
    name: str
    agent: str | None
    metadata: str
    """A JSON object of strings."""
    created_at: int
    last_used_at: int
    ended_at: int | None
    active_run: int | None
    uuid: str
    user: str | None
    parent: int | None
    """The thread that created it."""
    depth: int
    """How many threads there are above it."""
    seat_agent: str | None
    """The agent that speaks since a hand-off, if it is not the one that the thread was created with."""
    keeps: Keeps
    revision: int
    """How often its messages have been edited."""
    spec_bytes: int
    damaged: str = ""
    """The first damaged column, or ""; see `weftline.store.database`."""


class NewThread(Struct, frozen=True, kw_only=True):
    workspace: int
    salt: str
    name: str
    agent: str | None
    spec: bytes
    metadata: str
    secrets: bytes | None = None
    """Encrypted header values of the tools that the server calls."""
    uuid: str = field(default_factory=lambda: str(uuid4()))
    user: str | None = None
    parent: int | None = None
    depth: int = 0
    keeps: Keeps = "exchange"


class ThreadFilter(Struct, frozen=True, kw_only=True):
    """A filter of threads, and the place where a page begins: below the key `before`, `offset` threads later."""

    workspace: int
    before: int | None = None
    offset: int = 0
    limit: int = 50
    key: int | None = None
    ended: bool | None = None
    agents: tuple[str, ...] = ()
    """Only threads of these agents, if any are given."""
    metadata: tuple[tuple[str, str], ...] = ()
    user: str | None = None


def by_key(key: int) -> Query[ThreadRow | None]:
    row = yield from one(f"SELECT {_COLUMNS} FROM threads WHERE key = $1", key)
    return _thread(row)


def by_uuid(uuid: str) -> Query[ThreadRow | None]:
    row = yield from one(f"SELECT {_COLUMNS} FROM threads WHERE uuid = $1", uuid)
    return _thread(row)


def spec_of(key: int) -> Query[bytes]:
    """The client's JSON; header values of tools are `[redacted]`."""
    row = yield from one("SELECT spec FROM threads WHERE key = $1", key)
    return b"{}" if row is None else row[0]


def secrets_of(key: int) -> Query[bytes | None]:
    """Encrypted; None once the thread has ended."""
    row = yield from one("SELECT secrets FROM threads WHERE key = $1", key)
    return None if row is None else row[0]


def insert(new: NewThread, *, now: int) -> Query[ThreadRow]:
    crashpoints.hit(("thread.created",), "before")
    row = yield from one(
        "INSERT INTO threads (salt, workspace, name, agent, spec, metadata, created_at, last_used_at, next_place,"
        " secrets, uuid, user_id, parent, depth, keeps)"
        f" VALUES ($1, $2, $3, $4, $5, $6, $7, $7, 1, $8, $9, $10, $11, $12, $13) RETURNING {_COLUMNS}",
        new.salt,
        new.workspace,
        new.name,
        new.agent,
        new.spec,
        new.metadata,
        now,
        new.secrets,
        new.uuid,
        new.user,
        new.parent,
        new.depth,
        new.keeps,
    )
    assert row is not None
    thread = ThreadRow(*row)
    for name, value in decode(new.metadata, type=dict[str, str]).items():
        yield from statement(
            "INSERT INTO thread_metadata (workspace, name, value, thread) VALUES ($1, $2, $3, $4)",
            new.workspace,
            name,
            value,
            thread.key,
        )
    return thread


def under(idempotency: str, *, workspace: int) -> Query[tuple[bytes, int] | None]:
    """The digest of the body and the thread that was created under this idempotency key."""
    row = yield from one(
        "SELECT digest, thread FROM thread_keys WHERE workspace = $1 AND key = $2", workspace, idempotency
    )
    return None if row is None else (row[0], row[1])


def keep_key(idempotency: str, *, workspace: int, digest: bytes, thread: int, now: int) -> Query[None]:
    yield from statement(
        "INSERT INTO thread_keys (workspace, key, digest, thread, at) VALUES ($1, $2, $3, $4, $5)",
        workspace,
        idempotency,
        digest,
        thread,
        now,
    )


def add_messages(key: int, messages: Sequence[tuple[int, bytes]], *, format: int) -> Query[None]:
    """Adds messages from another log to a new thread; `format` is the version of that log."""
    for pos, (run, message) in enumerate(messages, 1):
        yield from statement(
            "INSERT INTO thread_messages (thread, pos, run, message) VALUES ($1, $2, $3, $4)", key, pos, run, message
        )
    yield from statement("UPDATE threads SET format = $1 WHERE key = $2 AND format < $1", format, key)


def mark_branch(row: ThreadRow, *, now: int) -> Query[None]:
    """Records that the thread was created for a fork that is about to be created; `remove_unused` clears the mark."""
    yield from keep_key(f"fork:{row.salt}", workspace=row.workspace, digest=_BRANCH, thread=row.key, now=now)


def marked_branches() -> Query[list[int]]:
    """The marked threads: those whose forks were not known to exist when the process died."""
    rows = yield from statement(
        "SELECT k.thread FROM workspaces w JOIN thread_keys k ON k.workspace = w.key AND k.key >= 'fork:'"
        " AND k.key < 'fork;' WHERE k.digest = $1",
        _BRANCH,
    )
    return [row[0] for row in rows]


def remove_unused(key: int) -> Query[None]:
    """Removes a thread that never had a run."""
    row = yield from by_key(key)
    if row is not None:
        yield from statement(
            "DELETE FROM thread_keys WHERE workspace = $1 AND key = $2 AND digest = $3",
            row.workspace,
            f"fork:{row.salt}",
            _BRANCH,
        )
    gone = yield from statement("DELETE FROM threads WHERE key = $1 AND next_place = 1 RETURNING key", key)
    if gone:
        yield from statement("DELETE FROM thread_metadata WHERE thread = $1", key)
        yield from statement("DELETE FROM thread_values WHERE thread = $1", key)
        yield from statement("DELETE FROM env_values WHERE owner = $1", f"thread:{key}")


def end(key: int, *, now: int) -> Query[None]:
    """Ends a thread. The time of an earlier end is kept."""
    crashpoints.hit(("thread.ended",), "before")
    yield from statement(
        "UPDATE threads SET ended_at = coalesce(ended_at, $1), secrets = NULL WHERE key = $2", now, key
    )


def newest_tagged(name: str, value: str, *, workspace: int, agent: str) -> Query[ThreadRow | None]:
    """The newest open thread of an agent with this metadata."""
    row = yield from one(
        f"SELECT {_LISTED} FROM thread_metadata AS tag CROSS JOIN threads"
        " WHERE tag.name = $1 AND tag.value = $2 AND tag.workspace = $3 AND threads.key = tag.thread"
        " AND threads.agent = $4 AND threads.ended_at IS NULL ORDER BY tag.thread DESC LIMIT 1",
        name,
        value,
        workspace,
        agent,
    )
    return _thread(row)


def page(wanted: ThreadFilter) -> Query[list[ThreadRow]]:
    """Newest first. A filter without an index of its own (ended, agent) walks the workspace's threads."""
    matching, newest, values = _matching(wanted)
    rows = yield from statement(
        f"SELECT {_LISTED} {matching} ORDER BY {newest} DESC LIMIT ${len(values) + 1} OFFSET ${len(values) + 2}",
        *values,
        wanted.limit,
        wanted.offset,
    )
    return [_to_row(row) for row in rows]


def count(wanted: ThreadFilter) -> Query[int]:
    """Returns the number of threads that match, on all pages."""
    matching, _, values = _matching(wanted)
    row = yield from one(f"SELECT count(*) {matching}", *values)
    return 0 if row is None else row[0]


def _matching(wanted: ThreadFilter) -> tuple[str, str, list[SqlValue]]:
    """The part of a query from `FROM` on, the column by which newer threads are first, and the values."""
    values = list[SqlValue]()

    def mark(value: SqlValue) -> str:
        values.append(value)
        return f"${len(values)}"

    where = list[str]()
    # The index of the first pair has its rows in order, so the walk ends with the page. In SQLite, cross joins keep the
    # order of the loops, so that a thread is read only if all pairs match.
    newest = "m0.thread" if wanted.metadata else "threads.key"
    source = "".join(f"thread_metadata AS m{number} CROSS JOIN " for number in range(len(wanted.metadata)))
    for number, (name, value) in enumerate(wanted.metadata):
        where.append(f"m{number}.workspace = {mark(wanted.workspace)}")
        where.append(f"m{number}.name = {mark(name)} AND m{number}.value = {mark(value)}")
        where.append(f"m{number}.thread = {newest if number else 'threads.key'}")
    where.append(f"threads.workspace = {mark(wanted.workspace)}")
    if wanted.key is not None:
        where.append(f"threads.key = {mark(wanted.key)}")
    if wanted.before is not None:
        where.append(f"{newest} < {mark(wanted.before)}")
    if wanted.agents:
        where.append(f"threads.agent IN ({', '.join(mark(agent) for agent in wanted.agents)})")
    if wanted.user is not None:
        where.append(f"threads.user_id = {mark(wanted.user)}")
    if wanted.ended is not None:
        where.append(f"threads.ended_at IS {'NOT ' if wanted.ended else ''}NULL")
    return f"FROM {source}threads WHERE {' AND '.join(where)}", newest, values


def _thread(row: Row | None) -> ThreadRow | None:
    return None if row is None else _to_row(row)


def _to_row(row: Row) -> ThreadRow:
    thread, read = ThreadRow(*row), Columns()
    return replace(
        thread,
        salt=read.text("salt", thread.salt),
        name=read.text("name", thread.name),
        agent=read.text_or_none("agent", thread.agent),
        metadata=read.words("metadata", thread.metadata),
        created_at=read.time("created_at", thread.created_at),
        last_used_at=read.time("last_used_at", thread.last_used_at),
        ended_at=read.time_or_none("ended_at", thread.ended_at),
        uuid=read.text_or_none("uuid", thread.uuid) or "",
        user=read.text_or_none("user_id", thread.user),
        seat_agent=read.text_or_none("seat_agent", thread.seat_agent),
        keeps="all" if read.text("keeps", thread.keeps) == "all" else "exchange",
        damaged=read.damaged,
    )
