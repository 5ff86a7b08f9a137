"""What readers of a run need from its log besides the events: its current state, and what its details depend on."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from weftline.errors import LOG_DAMAGED, StoreError, entry_damaged
from weftline.events.project_details import NEEDED_HEADS, DetailProjection, facts_of
from weftline.events.snapshot import RunSnapshot, SnapshotFold
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import FORMAT, CallAsked, CallClosed, TurnCompleted, decode_fact
from weftline.runtime import ids
from weftline.runtime.deploys import known_facts
from weftline.runtime.engine import Engine
from weftline.runtime.reads.calls import entries
from weftline.store.base import LogReader
from weftline.store.rows import RunRow
from weftline.work.heavy import in_turn

_MANY = 2**31 - 1
_DECODE_ON_LOOP_BYTES = 16 * 1024
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


async def projection_of(engine: Engine, key: int, run_id: str) -> DetailProjection:
    """Returns a projection that can begin at any entry of the run.

    Raises `StoreError` (`log_damaged`) if the first entry is unreadable. Other unreadable entries are reported when the
    reader gets to them.
    """
    stored = engine.stored
    row, first = await stored.row(key), await stored.logs.entry(key, 1)
    thread = None if row is None else await stored.session_id(row.listed_under)
    created = None if first is None else first.body
    read = partial(facts_of, run_id, created=created, thread=thread)
    try:
        facts = read() if len(created or b"") <= _DECODE_ON_LOOP_BYTES else await in_turn(read)
    except UNREADABLE:
        raise entry_damaged(run_id, 1) from None
    projection = DetailProjection(facts)
    for head in await stored.logs.heads(key, kinds=NEEDED_HEADS):
        with suppress(*UNREADABLE):
            projection.learn(decode_fact.decode(head))
    for one in await stored.logs.newest_facts(key, kinds=projection.needed, limit=_MANY, max_bytes=_MANY):
        with suppress(*UNREADABLE):
            projection.learn_whole(decode_fact.decode(one.head), one.body)
    return projection
