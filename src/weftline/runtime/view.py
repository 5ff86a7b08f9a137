"""A run as its row and the two ends of its log tell it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.json import decode

from weftline.kernel import bodies
from weftline.kernel.entries import ModelRef, RunEnded, decode_fact
from weftline.messages import Usage
from weftline.runtime import ids
from weftline.store.sqlite.reads import Reader, RunRow
from weftline.wire.events import ERROR_CLASSES
from weftline.wire.responses import RunView, SessionUsage, Status


def run_view(read: Reader, row: RunRow) -> RunView:
    """What a snapshot shows. The spec is `{}` when retention has removed the entry that held it."""
    first = read.entry(row.key, 1)
    spec = first[4] if first is not None else b"{}"
    run = RunView(
        id=ids.run_id(row.key, row.salt),
        status=_status(row.status),
        created_us=row.created_at,
        spec=spec,
        session_id=session_of(read, row.thread),
        name=row.name,
        metadata=decode(row.metadata, type=dict[str, str]),
        started_us=row.started_at,
        finished_us=row.ended_at,
    )
    if row.ended_at is None:
        return run
    last = read.entry(row.key, row.next_seq - 1)
    head = decode_fact.decode(last[3]) if last is not None else None
    if last is None or not isinstance(head, RunEnded):
        return run
    return _ended(run, head, last[4])


def _ended(run: RunView, head: RunEnded, body: bytes) -> RunView:
    content = bodies.decode_ended(body)
    failed = head.status == "failed"
    error_class = head.code if head.code in ERROR_CLASSES else "unknown" if head.code == "worker_error" else None
    return RunView(
        id=run.id,
        status=run.status,
        created_us=run.created_us,
        spec=run.spec,
        session_id=run.session_id,
        name=run.name,
        metadata=run.metadata,
        started_us=run.started_us,
        finished_us=run.finished_us,
        final_text=content.partial_text if failed else content.text,
        error=content.error if failed else None,
        error_class=error_class,
        finish_reason=head.finish if head.code == "truncation" else None,
        reason=head.reason or None if head.status != "cancelled" else None,
        usage=head.usage,
        turns=head.turns,
        attempts=head.attempts,
        model=head.model or ModelRef(),
        cost_nusd=head.cost_nusd,
    )


def session_of(read: Reader, thread: int | None) -> str | None:
    if thread is None:
        return None
    row = read.thread(thread)
    return ids.session_id(row.key, row.salt) if row is not None else None


def _status(status: str) -> Status:
    assert status in ("queued", "running", "paused", "succeeded", "failed", "cancelled")
    return status


def session_usage(heads: Sequence[bytes]) -> SessionUsage:
    """What the ended runs of a thread used, from their terminal entries."""
    ends = [head for raw in heads if isinstance(head := decode_fact.decode(raw), RunEnded)]
    costs = [end.cost_nusd for end in ends]
    priced = [cost for cost in costs if cost is not None]
    return SessionUsage(
        runs=len(ends),
        turns=sum(end.turns for end in ends),
        tokens=sum((end.usage for end in ends), Usage()),
        cost_nusd=sum(priced) if len(priced) == len(costs) else None,
    )
