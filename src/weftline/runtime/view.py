"""Reads what a snapshot of a run is made from; `wire.snapshots` makes it."""

from __future__ import annotations

from weftline.kernel.entries import RunEnded, decode_fact
from weftline.runtime import ids
from weftline.store.sqlite.reads import Reader, RunRow
from weftline.wire import snapshots
from weftline.wire.responses import RunView, SessionUsage


def run_view(read: Reader, row: RunRow) -> RunView:
    """What a snapshot shows. The spec is `{}` when retention has removed the entry that held it."""
    first = read.entry(row.key, 1)
    return snapshots.run_view(
        row,
        run_id=ids.run_id(row.key, row.salt),
        session_id=session_of(read, row.thread),
        created=first[4] if first is not None else None,
        ended=_end(read, row),
    )


def session_usage(read: Reader, thread: int) -> SessionUsage:
    """What the ended runs of a thread used."""
    heads = [decode_fact.decode(head) for head in read.ends_of_thread(thread)]
    return snapshots.session_usage([head for head in heads if isinstance(head, RunEnded)])


def session_of(read: Reader, thread: int | None) -> str | None:
    if thread is None:
        return None
    row = read.thread(thread)
    return ids.session_id(row.key, row.salt) if row is not None else None


def _end(read: Reader, row: RunRow) -> tuple[RunEnded, bytes] | None:
    last = read.entry(row.key, row.next_seq - 1) if row.ended_at is not None else None
    if last is None:
        return None
    head = decode_fact.decode(last[3])
    return (head, last[4]) if isinstance(head, RunEnded) else None
