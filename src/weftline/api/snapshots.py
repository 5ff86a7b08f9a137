"""The current state of a run, read from its log."""

from __future__ import annotations

from weftline.details.projection import facts_of
from weftline.details.snapshot import RunSnapshot, SnapshotFold
from weftline.errors import LOG_DAMAGED, StoreError
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import FORMAT, CallAsked, CallClosed, TurnCompleted, decode_fact
from weftline.runtime import ids
from weftline.runtime.deploys import known_facts
from weftline.runtime.reads.calls import entries
from weftline.store.base import LogReader
from weftline.store.rows import RunRow

_CALLS = ("turn.completed", "call.asked", "call.closed")


async def snapshot_of(log: LogReader, row: RunRow, *, thread: str | None) -> RunSnapshot:
    """Builds a snapshot of a run; `thread` is the public id of its thread. Raises `StoreError` (`log_damaged`)."""
    run_id = ids.run_id(row.key, row.salt)
    fold: SnapshotFold | None = None
    try:
        async for item in entries(log, row.key):
            if fold is None:
                created = item.body if item.kind == "run.created" else None
                fold = SnapshotFold(facts_of(run_id, created=created, thread=thread))
            if not item.head:
                continue
            try:
                fold.take(decode_fact.decode(item.head), item.body, seq=item.seq, at=item.at)
            except UNREADABLE:
                if row.format <= FORMAT:
                    raise  # in a newer format, show what this code understands
        fold = fold or SnapshotFold(facts_of(run_id, created=None, thread=thread))
        below = {child: await _calls_of(log, child) for child in fold.children}
    except UNREADABLE:
        raise StoreError(f"The log of run {run_id} is damaged.", code=LOG_DAMAGED) from None
    return fold.build(status=row.status, below=below)


async def _calls_of(log: LogReader, run_id: str) -> tuple[int, int]:
    """Returns how many calls the turns of a run asked for, and how many of these have a result."""
    asked = closed = 0
    for head in await known_facts(log, ids.key_of(run_id), kinds=_CALLS):
        match head:
            case TurnCompleted():
                asked += len(head.calls)
            case CallAsked():
                asked += 1
            case CallClosed():
                closed += 1
            case _:
                pass
    return asked, closed
