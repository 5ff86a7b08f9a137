"""Messages of threads: one row each, with the position that they were added at.

A run that keeps everything adds a row with the fact that makes it: an answer, then a row for each result of its calls
in the order in which they arrive. Models read the results together, behind the answer: `in_order`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.json import decode, encode

from weftline.store.database import Query, Row, SqlValue, Statement, one, statement
from weftline.store.rows import KeptMessage, MessageEdit

StoredMessage: TypeAlias = tuple[bytes, int | None]
"""A message in the form in which the log stores it, and its size if that is not the message itself."""

_LAST = "SELECT coalesce(max(pos), 0) FROM thread_messages WHERE thread = $1"
_KEEP = (
    "INSERT INTO thread_messages (thread, pos, run, message, size, id, role, silent, status, tool_status, metadata,"
    " created_at, sent_at, calls, asked_by, place, origin)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)"
)
READ = "status = 'completed' AND depth = 0 AND deleted = 0"
"""What models read."""
PLACES = "pos, run, id, calls, asked_by, place"
_UNNAMED = re.compile(r"msg_([1-9a-f][0-9a-f]{0,14})-([1-9][0-9]{0,14})")
_RESULTS, _END = b'{"role":"tool","results":[', b"]}"


class Place(NamedTuple):
    """A row, without its content."""

    pos: int
    run: int
    id: str | None
    calls: int
    asked_by: str | None
    place: int


class MessageRow(Struct, frozen=True, kw_only=True):
    """A message as it is listed."""

    pos: int
    run: int
    message: bytes
    id: str | None
    depth: int
    parent: str | None
    silent: bool
    status: str
    tool_status: str | None
    metadata: str
    created_at: int | None
    sent_at: int | None
    asked_by: str | None

    @property
    def name(self) -> str:
        """Its id. A message of a client's session has none of its own."""
        return self.id or f"msg_{self.run:x}-{self.pos}"


class MessageFilter(Struct, frozen=True, kw_only=True):
    """A part of the messages of a thread."""

    thread: int
    id: str | None = None
    limit: int = 50
    offset: int = 0
    newest_first: bool = False
    with_silent: bool = True
    max_depth: int | None = None


def keep(thread: int, kept: Sequence[tuple[KeptMessage, StoredMessage]], *, run: int, format: int) -> Query[None]:
    """Adds the messages of a run that goes on."""
    row = yield from one(_LAST, thread)
    last = 0 if row is None else row[0]
    for pos, (new, (message, size)) in enumerate(kept, last + 1):
        yield Statement(
            _KEEP,
            (
                thread,
                pos,
                run,
                message,
                size,
                new.id,
                new.role,
                int(new.silent),
                new.status,
                new.tool_status,
                new.metadata,
                new.created_at,
                new.sent_at,
                new.calls,
                new.asked_by,
                new.place,
                new.origin,
            ),
        )
    yield Statement("UPDATE threads SET format = $1 WHERE key = $2 AND format < $1", (format, thread))


def edit(change: MessageEdit) -> Query[None]:
    """Changes or removes a message. What it was is kept for the run that reads it."""
    if change.keep:
        yield from statement(
            "INSERT INTO thread_revisions (thread, pos, upto, run, message, size)"
            " SELECT thread, pos, $1, run, message, size FROM thread_messages WHERE thread = $2 AND pos = $3"
            " ON CONFLICT DO NOTHING",
            change.revision - 1,
            change.thread,
            change.pos,
        )
    yield from statement(
        "UPDATE thread_messages SET message = $1, size = NULL, metadata = $2, silent = $3, revision = $4, deleted = $5"
        " WHERE thread = $6 AND pos = $7",
        change.message or b"",
        change.metadata,
        int(change.silent),
        change.revision,
        int(change.message is None),
        change.thread,
        change.pos,
    )
    yield from statement(
        "UPDATE threads SET revision = $1, edited_upto = CASE WHEN edited_upto < $2 THEN edited_upto ELSE $2 END"
        " WHERE key = $3",
        change.revision,
        change.index,
        change.thread,
    )


def pinned(thread: int, *, through: int, revision: int, message: str = "message") -> Query[list[bytes] | None]:
    """What a run that began at this position and revision reads; None if not all of it is there any more.

    `message` is the expression that reads a content.
    """
    version = (
        f"(SELECT {message} FROM thread_revisions AS old WHERE old.thread = now.thread AND old.pos = now.pos"
        " AND old.upto >= $1 ORDER BY old.upto LIMIT 1)"
    )
    rows = yield from statement(
        f"SELECT {PLACES}, {message}, revision, {version} FROM thread_messages AS now"
        " WHERE thread = $2 AND pos <= $3 AND status = 'completed' AND depth = 0"
        " AND (deleted = 0 OR revision > $1) ORDER BY pos",
        revision,
        thread,
        through,
    )
    found: list[tuple[Place, bytes]] = []
    for *place, content, changed, before in rows:
        if changed > revision and before is None:
            return None
        found.append((Place(*place), content if changed <= revision else before))
    return whole(found)


def forget_versions(thread: int) -> Query[None]:
    """Removes what messages were before they were edited: no run reads it any more."""
    yield from statement("DELETE FROM thread_revisions WHERE thread = $1", thread)


def by_origin(thread: int, origin: str) -> Query[str | None]:
    """The id of the message that code added under this origin."""
    row = yield from one("SELECT id FROM thread_messages WHERE thread = $1 AND origin = $2", thread, origin)
    return None if row is None else row[0]


def index_of(thread: int, pos: int, *, through: int | None = None) -> Query[int | None]:
    """How many of the messages that models read, up to `through`, come before the one that this row belongs to; None
    if models read no such row.
    """
    rows = yield from statement(
        f"SELECT {PLACES} FROM thread_messages WHERE thread = $1 AND {READ} AND pos <= $2 ORDER BY pos",
        thread,
        2**62 if through is None else through,
    )
    found = in_order([Place(*row) for row in rows])
    return next((index for index, some in enumerate(found) if any(one.pos == pos for one in some)), None)


def below(thread: int, id: str) -> Query[list[int]]:
    """The positions of the results of an answer, and of what was said within its calls."""
    rows = yield from statement(
        "SELECT pos FROM thread_messages WHERE thread = $1 AND (asked_by = $2 OR parent = $2) AND deleted = 0",
        thread,
        id,
    )
    return [row[0] for row in rows]


def in_order(rows: Iterable[Place]) -> list[list[Place]]:
    """Returns the rows of each message that models read: the results of an answer are one message, behind it.

    An answer some of whose calls have no result is left out.
    """
    rows = list(rows)
    results: dict[str, list[Place]] = {}
    for row in rows:
        if row.asked_by is not None:
            results.setdefault(row.asked_by, []).append(row)
    if not results and not any(row.calls for row in rows):
        return [[row] for row in rows]
    found: list[list[Place]] = []
    for row in rows:
        if row.asked_by is not None:
            continue
        answers = sorted(results.get(row.id or "", ()), key=lambda one: one.place)
        if len(answers) == row.calls:
            found += [[row], answers] if answers else [[row]]
    return found


def joined(messages: Sequence[bytes]) -> bytes:
    """The results of one answer as one message."""
    if len(messages) == 1:
        return messages[0]
    if all(one.startswith(_RESULTS) and one.endswith(_END) for one in messages):
        return _RESULTS + b",".join([one[len(_RESULTS) : -len(_END)] for one in messages]) + _END
    return encode({"role": "tool", "results": [one for message in messages for one in decode(message)["results"]]})


def whole(rows: Sequence[tuple[Place, bytes]]) -> list[bytes]:
    """The messages that models read, of rows with their content."""
    contents = {place.pos: message for place, message in rows}
    return [joined([contents[one.pos] for one in some]) for some in in_order([place for place, _ in rows])]


def messages(thread: int) -> Query[list[bytes]]:
    """The messages of a thread, oldest first, as they are stored."""
    rows = yield from statement(
        f"SELECT {PLACES}, message FROM thread_messages WHERE thread = $1 AND {READ} ORDER BY pos", thread
    )
    return whole([(Place(*row[:-1]), row[-1]) for row in rows])


def standing(thread: int) -> Query[tuple[int, int, int | None]]:
    """The position of its last message, how often it was edited, and how many messages no edit has changed; see
    `History`.
    """
    row = yield from one(f"SELECT ({_LAST}), revision, edited_upto FROM threads WHERE key = $1", thread)
    return (0, 0, None) if row is None else (row[0], row[1], row[2])


def runs_of(thread: int) -> Query[list[int]]:
    """The run that added each message of a thread, oldest first. The messages themselves are read from the log."""
    rows = yield from statement(
        f"SELECT {PLACES} FROM thread_messages WHERE thread = $1 AND {READ} ORDER BY pos", thread
    )
    return [some[0].run for some in in_order([Place(*row) for row in rows])]


_ROW = "pos, run, {message}, id, depth, parent, silent, status, tool_status, metadata, created_at, sent_at, asked_by"


def page(wanted: MessageFilter, *, message: str = "message") -> Query[tuple[list[MessageRow], int]]:
    """The messages that match, and how many match in all. `message` is the expression that reads a content."""
    where, values = _matching(wanted)
    row = yield from one(f"SELECT count(*) FROM thread_messages WHERE {where}", *values)
    order = "DESC" if wanted.newest_first else "ASC"
    last = len(values)
    rows = yield from statement(
        f"SELECT {_ROW.format(message=message)} FROM thread_messages WHERE {where} ORDER BY pos {order}"
        f" LIMIT ${last + 1} OFFSET ${last + 2}",
        *values,
        wanted.limit,
        wanted.offset,
    )
    return [to_row(row) for row in rows], 0 if row is None else row[0]


def to_row(row: Row) -> MessageRow:
    pos, run, message, id, depth, parent, silent, status, tool_status, metadata, created_at, sent_at, asked_by = row
    return MessageRow(
        pos=pos,
        run=run,
        message=message,
        id=id,
        depth=depth,
        parent=parent,
        silent=bool(silent),
        status=status,
        tool_status=tool_status,
        metadata=metadata,
        created_at=created_at,
        sent_at=sent_at,
        asked_by=asked_by,
    )


def _matching(wanted: MessageFilter) -> tuple[str, list[SqlValue]]:
    where, values = "thread = $1 AND deleted = 0", list[SqlValue]([wanted.thread])
    if wanted.id is not None:
        run, pos = _unnamed(wanted.id)
        values += [pos, run] if pos else [wanted.id]
        where += " AND pos = $2 AND run = $3 AND id IS NULL" if pos else " AND id = $2"
    if not wanted.with_silent:
        where += " AND silent = 0"
    if wanted.max_depth is not None:
        values.append(wanted.max_depth)
        where += f" AND depth <= ${len(values)}"
    return where, values


def _unnamed(id: str) -> tuple[int, int]:
    """The run and the position in the id of a message that has none of its own; zeros if it is another one."""
    found = _UNNAMED.fullmatch(id)
    return (0, 0) if found is None else (int(found[1], 16), int(found[2]))
