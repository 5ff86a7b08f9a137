"""Changes to threads by commits of the log: one run of a thread is active, the others are queued; messages are added.

These run in the transaction of the commit. Which runs a thread has is known to the log alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from weftline.store.database import Query, Statement, one, statement
from weftline.store.records.thread_messages import StoredMessage, forget_versions

_END = (
    "SELECT active_run, format, (SELECT coalesce(max(pos), 0) FROM thread_messages WHERE thread = $1), revision"
    " FROM threads WHERE key = $1"
)
_MESSAGE = "INSERT INTO thread_messages (thread, pos, run, message, size, created_at) VALUES ($1, $2, $3, $4, $5, $6)"
_PASS_ON = (
    "UPDATE threads SET active_run = $1, last_used_at = CASE WHEN last_used_at < $2 THEN $2 ELSE last_used_at END"
    " WHERE key = $3"
)


class Place(Struct, frozen=True):
    """A new run's place in the queue of its thread."""

    number: int
    queued: bool
    """Whether another run of the thread is active now."""


def open_format(thread: int) -> Query[int | None]:
    """The version of the vocabulary of an open thread's messages; None if it does not exist or has ended."""
    row = yield from one("SELECT format FROM threads WHERE key = $1 AND ended_at IS NULL", thread)
    return None if row is None else row[0]


def standing(thread: int) -> Query[tuple[int | None, int]]:
    """The active run of the thread, and the version of the vocabulary of its messages."""
    row = yield from one("SELECT active_run, format FROM threads WHERE key = $1", thread)
    return (None, 0) if row is None else (row[0], row[1])


def seat(thread: int, agent: str) -> Query[None]:
    """Makes this the agent that speaks on a thread. It stays the thread of the agent that it was created with."""
    yield from statement("UPDATE threads SET seat_agent = $1 WHERE key = $2", agent, thread)


def take_place(thread: int, *, run: int, at: int, format: int) -> Query[Place | None]:
    """Adds a run, whose log has this format, to the queue of a thread; on an idle thread it becomes active at once.

    None if the thread does not accept it: it does not exist, has ended, or newer code has written to it.
    """
    row = yield from one(
        "UPDATE threads SET next_place = next_place + 1, last_used_at = $1, active_run = coalesce(active_run, $2)"
        " WHERE key = $3 AND ended_at IS NULL AND format <= $4 RETURNING next_place, active_run",
        at,
        run,
        thread,
        format,
    )
    return None if row is None else Place(row[0] - 1, row[1] != run)


def ended_with_runs() -> Query[list[int]]:
    """Threads that have ended although some of their runs have not: the process died before cancelling them."""
    rows = yield from statement("SELECT key FROM threads WHERE ended_at IS NOT NULL AND active_run IS NOT NULL")
    return [row[0] for row in rows]


def begin(thread: int, messages: Sequence[StoredMessage], *, run: int, format: int, at: int) -> Query[None]:
    """Adds the messages that a new thread begins with, for its first run."""
    row = yield from one(_END, thread)
    if row is not None:
        yield from _add(thread, messages, run=run, format=format, known=row[1], last=row[2], at=at)


def end_run(
    thread: int,
    messages: Sequence[StoredMessage],
    *,
    run: int,
    format: int,
    following: int | None,
    at: int,
    read: bool = True,
) -> Query[bool]:
    """Adds the messages of a run that ends, and makes the run `following`, if any, the active one.

    Returns False if another run is active, for example when this one was cancelled in the queue.
    """
    row = yield from one(_END, thread)
    if row is None:
        return False
    active, known, last, edited = row
    if messages:
        yield from _add(thread, messages, run=run, format=format, known=known, last=last, at=at)
    if active != run:
        return False
    yield Statement(_PASS_ON, (following, at, thread))
    if edited:
        yield from forget_versions(thread)
        if read:
            yield Statement("UPDATE threads SET edited_upto = NULL WHERE key = $1", (thread,))
    return True


def left_by(run: int, *, workspace: int) -> Query[list[bytes]]:
    """The messages that a run has left on any thread, as they are stored. Reads all threads of the workspace."""
    rows = yield from statement(
        "SELECT m.message FROM threads t JOIN thread_messages m ON m.thread = t.key"
        " WHERE t.workspace = $1 AND m.run = $2",
        workspace,
        run,
    )
    return [row[0] for row in rows]


def size(thread: int) -> Query[int]:
    """The size of the thread's messages in bytes."""
    row = yield from one(
        "SELECT CAST(coalesce(sum(coalesce(size, length(message))), 0) AS BIGINT) FROM thread_messages"
        " WHERE thread = $1",
        thread,
    )
    return 0 if row is None else row[0]


def _add(
    thread: int, messages: Sequence[StoredMessage], *, run: int, format: int, known: int, last: int, at: int
) -> Query[None]:
    for pos, (message, size) in enumerate(messages, last + 1):
        yield Statement(_MESSAGE, (thread, pos, run, message, size, at))
    if known < format:
        yield Statement("UPDATE threads SET format = $1 WHERE key = $2 AND format < $1", (format, thread))
