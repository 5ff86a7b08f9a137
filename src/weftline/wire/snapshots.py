"""Snapshots of runs, projected from the row and the first and last entries of the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import UNSET, DecodeError
from msgspec.json import Decoder
from msgspec.structs import replace

from weftline.errors import WeftlineError
from weftline.events.project import failed_finish
from weftline.events.wire import ERROR_CLASSES
from weftline.kernel import bodies
from weftline.kernel.control import RunPaused
from weftline.kernel.entries import ModelRef, RunEnded
from weftline.messages import Usage
from weftline.plan import PlanOutline, decode_outline
from weftline.wire.attachments import with_redacted_urls
from weftline.wire.run_responses import CallName, ForkedFrom, RunView, Status
from weftline.wire.session_responses import SessionUsage

_decode_metadata = Decoder(dict[str, str]).decode


class RunFields(Protocol):
    """The fields of a run's row for a snapshot. `metadata` is JSON; times are microseconds since the epoch."""

    @property
    def status(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def metadata(self) -> str: ...
    @property
    def created_at(self) -> int: ...
    @property
    def started_at(self) -> int | None: ...
    @property
    def ended_at(self) -> int | None: ...


def run_view(
    row: RunFields,
    *,
    run_id: str,
    session_id: str | None,
    created: bytes | None,
    ended: tuple[RunEnded, bytes] | None,
    in_doubt: Sequence[CallName],
    parent: str | None,
    pause: RunPaused | None,
) -> RunView:
    """Returns a run from its row and entries.

    `created` is the body of the first entry, None if retention has removed it; `ended` is the terminal entry, `pause`
    the one that holds the run until it is resumed; `parent` is the run whose call this one executes.
    """
    outline = _outline(created)
    run = RunView(
        id=run_id,
        status=_status(row.status),
        created_us=row.created_at,
        spec=_spec(created),
        session_id=session_id,
        parent=parent,
        name=row.name,
        metadata=_decode_metadata(row.metadata),
        labels=outline.labels,
        started_us=row.started_at,
        finished_us=row.ended_at,
        in_doubt=in_doubt,
        outline=outline,
        forked_from=_origin(created),
        reason=None if pause is None else pause.reason or None,
    )
    return run if ended is None else _ended(run, *ended)


def damaged_run(row: RunFields, *, run_id: str, error: WeftlineError) -> RunView:
    """Returns what a list shows for a run whose log is unreadable."""
    return RunView(
        id=run_id,
        status=_status(row.status),
        created_us=row.created_at,
        spec=b"{}",
        session_id=None,
        name=row.name,
        metadata={},
        started_us=row.started_at,
        finished_us=row.ended_at,
        error=error.message,
        error_code=error.code,
    )


def session_usage(ends: Iterable[RunEnded]) -> SessionUsage:
    """Returns the usage of a thread's ended runs, from their terminal entries."""
    ends = list(ends)
    costs = [end.cost_nusd for end in ends]
    priced = [cost for cost in costs if cost is not None]
    return SessionUsage(
        runs=len(ends),
        turns=sum(end.turns for end in ends),
        tokens=sum((end.usage for end in ends), Usage()),
        cost_nusd=sum(priced) if len(priced) == len(costs) else None,
        attempts=sum(end.attempts for end in ends),
        estimated=any(end.estimated for end in ends),
    )


def _spec(created: bytes | None) -> bytes:
    """Returns the client's spec; `{}` if the run did not come from a client, or its entry is gone."""
    sent = UNSET if created is None else bodies.decode_created(created).sent
    return b"{}" if sent is UNSET else with_redacted_urls(bytes(sent))


def _origin(created: bytes | None) -> ForkedFrom | None:
    origin = None if created is None else bodies.decode_created(created).origin
    return None if origin is None else ForkedFrom(origin.run, origin.turn)


def _outline(created: bytes | None) -> PlanOutline:
    """Returns the outline; empty if the entry is gone, or newer code wrote its plan in another format."""
    try:
        return PlanOutline() if created is None else decode_outline(bodies.decode_created(created).plan)
    except DecodeError:
        return PlanOutline()


def _ended(run: RunView, head: RunEnded, body: bytes) -> RunView:
    content = bodies.decode_ended(body)
    failed = head.status == "failed"
    error_class = head.code if head.code in ERROR_CLASSES else "unknown" if head.code == "worker_error" else None
    return replace(
        run,
        final_text=content.partial_text if failed else content.text,
        error=content.error if failed else None,
        error_code=head.code or "error" if failed else None,
        error_class=error_class,
        finish_reason=_finish(head),
        reason=head.reason or None if head.status != "cancelled" else None,
        usage=head.usage,
        turns=head.turns,
        attempts=head.attempts,
        model=head.model or ModelRef(),
        cost_nusd=head.cost_nusd,
        estimated=head.estimated,
    )


def _finish(head: RunEnded) -> str | None:
    if head.status == "succeeded":
        return head.finish
    return failed_finish(head) if head.code == "truncation" else None


def _status(status: str) -> Status:
    assert status in ("queued", "running", "paused", "succeeded", "failed", "cancelled")
    return status
