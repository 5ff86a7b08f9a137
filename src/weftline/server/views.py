"""Reads what a snapshot of a run is made from; `wire.snapshots` makes it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from weftline.kernel.entries import RunEnded, decode_fact
from weftline.runtime import ids
from weftline.runtime.engine import Engine
from weftline.runtime.receipts import MAX_DOUBTS, CallName, CancelReceipt, stored_doubts
from weftline.store.base import RunRow, Stored
from weftline.wire import responses, snapshots
from weftline.wire.responses import Cancelled, RunView, SessionUsage


class RunSource(Protocol):
    """Where a run is read: an engine, or a store."""

    async def entry(self, key: int, seq: int, *, max_bytes: int | None = None) -> Stored | None: ...
    async def session_id(self, thread: int | None) -> str | None: ...
    async def receipt(self, key: int) -> CancelReceipt: ...


async def run_view(engine: RunSource, row: RunRow, *, max_bytes: int | None = None) -> RunView:
    """What a snapshot shows. The spec is `{}` when retention has removed the entry that held it.

    Raises `LargeEntry`, without having read it, if an entry that is needed has more than `max_bytes`.
    """
    first = await engine.entry(row.key, 1, max_bytes=max_bytes)
    return await _view(engine, row, first, max_bytes=max_bytes)


async def run_summary(engine: RunSource, row: RunRow, *, max_bytes: int | None = None) -> RunView:
    """Like `run_view`, without the spec, which may be large and is not read."""
    return await _view(engine, row, None, max_bytes=max_bytes)


async def _view(engine: RunSource, row: RunRow, first: Stored | None, *, max_bytes: int | None) -> RunView:
    last = await engine.entry(row.key, row.next_seq - 1, max_bytes=max_bytes) if row.ended_at is not None else None
    session_id = await engine.session_id(row.thread)
    in_doubt = stored_doubts(row)
    if in_doubt is None:
        in_doubt = (await engine.receipt(row.key)).in_doubt[-MAX_DOUBTS:]

    def made() -> RunView:
        return snapshots.run_view(
            row,
            run_id=ids.run_id(row.key, row.salt),
            session_id=session_id,
            created=first.body if first is not None else None,
            ended=_end(last),
            in_doubt=_calls(in_doubt),
        )

    size = sum([one.size for one in (first, last) if one is not None])
    return made() if size <= _MADE_HERE_BYTES else await asyncio.to_thread(made)


_MADE_HERE_BYTES = 64 * 1024
_COUNTED_HERE = 200


async def session_usage(engine: Engine, thread: int) -> SessionUsage:
    """What the ended runs of a thread used."""
    ends = await engine.ends_of_thread(thread)

    def used() -> SessionUsage:
        heads = [decode_fact.decode(head) for head in ends]
        return snapshots.session_usage([head for head in heads if isinstance(head, RunEnded)])

    return used() if len(ends) <= _COUNTED_HERE else await asyncio.to_thread(used)


def _end(last: Stored | None) -> tuple[RunEnded, bytes] | None:
    if last is None:
        return None
    head = decode_fact.decode(last.head)
    return (head, last.body) if isinstance(head, RunEnded) else None


def cancelled(receipt: CancelReceipt) -> Cancelled:
    """The answer to a cancel."""
    return Cancelled(receipt.status, _calls(receipt.stopped), _calls(receipt.finished), _calls(receipt.in_doubt))


def receipt_view(receipt: CancelReceipt) -> responses.CancelReceipt:
    """The receipt as a part of a snapshot."""
    return responses.CancelReceipt(
        receipt.status, _calls(receipt.stopped), _calls(receipt.finished), _calls(receipt.in_doubt)
    )


def _calls(calls: tuple[CallName, ...]) -> list[responses.CallName]:
    return [responses.CallName(call.id, call.name) for call in calls]
