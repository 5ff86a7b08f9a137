"""Checks whether a run can be exported, replayed or forked, before anything is done."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from weftline.errors import LOG_DAMAGED, Conflict, NotFound, StoreError, entry_damaged
from weftline.kernel.damage import UNREADABLE, fact_is_readable
from weftline.kernel.entries import CallStarted, decode_fact
from weftline.runtime import ids
from weftline.runtime.deploys import unsupported
from weftline.runtime.reads.calls import entries
from weftline.runtime.reads.finding import row_of
from weftline.store.base import LogReader
from weftline.store.rows import Item, RunRow


async def find_run(log: LogReader, run_id: str, *, workspace: int | None = None) -> RunRow:
    """The row of a run. Raises `NotFound` for an unknown id and for a run of another workspace alike."""
    row = await row_of(log, run_id, workspace=workspace)
    if row is None:
        raise NotFound(f"There is no run {run_id!r}.", code="unknown_run")
    return row


async def require_whole(log: LogReader, row: RunRow) -> Item:
    """The first entry of a run that has ended and whose log is complete and can be read.

    Raises `Conflict`: `unsupported_run`, `run_unfinished` or `run_trimmed`, and `StoreError` (`log_damaged`).
    """
    run_id = ids.run_id(row.key, row.salt)
    if newer := unsupported(row):
        raise Conflict(f"{run_id} was written by a newer version of Weftline ({newer}).", code="unsupported_run")
    if row.ended_at is None:
        raise Conflict(f"{run_id} has not ended: it is {row.status}.", code="run_unfinished")
    first = await log.entry(row.key, 1)
    if first is None or first.kind != "run.created":
        raise Conflict(f"The log of {run_id} has been removed by retention.", code="run_trimmed")
    if not fact_is_readable(first.kind, first.head, first.body):
        raise entry_damaged(run_id, first.seq)
    return first


async def readable_entries(log: LogReader, row: RunRow) -> AsyncGenerator[Item]:
    """All entries of a run that has ended, in order. Raises `StoreError` (`log_damaged`) at one that cannot be read."""
    async for item in entries(log, row.key):
        if item.head and not fact_is_readable(item.kind, item.head, item.body):
            raise entry_damaged(ids.run_id(row.key, row.salt), item.seq)
        yield item


async def children_of(log: LogReader, row: RunRow) -> list[str]:
    """The ids of the runs that executed calls of a run, in the order in which they began."""
    try:
        heads = [decode_fact.decode(head) for head in await log.heads(row.key, kinds=("call.started",))]
    except UNREADABLE:
        run_id = ids.run_id(row.key, row.salt)
        raise StoreError(f"The log of run {run_id} is damaged: a call cannot be read.", code=LOG_DAMAGED) from None
    return [head.child for head in heads if isinstance(head, CallStarted) and head.child]
