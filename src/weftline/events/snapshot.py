"""The current state of a run: a projection of its log, up to any entry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.json import Decoder
from msgspec.structs import replace

from weftline.engine_options import AttributeValue, EngineOptions, RetryPolicy
from weftline.events.details import AnyDetail, AwaitClarification, AwaitConfirmation, AwaitQuestions, UsageRecorded
from weftline.events.details import PhaseChanged as _PhaseChanged
from weftline.events.project_details import DetailProjection, RunFacts
from weftline.failure import preview_of
from weftline.kernel import bodies
from weftline.kernel.entries import (
    AwaitClosed,
    CallAsked,
    CallClosed,
    CallOpened,
    CallStarted,
    ChildEnded,
    Fact,
    RunCreated,
    RunEnded,
    TurnCompleted,
)
from weftline.messages import Usage, joined_text

Status: TypeAlias = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
Question: TypeAlias = AwaitClarification | AwaitQuestions | AwaitConfirmation


class SnapshotCall(Struct, frozen=True, kw_only=True):
    """A call, in the order of announcement. Times are microseconds since the epoch, UTC."""

    id: str
    name: str
    turn: int
    parent_call: str | None = None
    scheduled_at: int
    started_at: int | None = None
    completed_at: int | None = None
    duration_ms: int | None = None
    """How long it took to execute."""
    error: str | None = None
    """For a failed call: what the model reads about it, on one line."""
    child_id: str | None = None
    expected_children: int = 0
    """How many calls were requested below it: by the code that it runs, or by its child run."""
    observed_children: int = 0
    """How many of them have a result."""


class SnapshotChild(Struct, frozen=True, kw_only=True):
    """A run that executes a call."""

    run_id: str
    call_id: str
    name: str
    """The name of the tool."""
    status: Literal["running", "succeeded", "failed", "cancelled"] = "running"


class RunSnapshot(Struct, frozen=True, kw_only=True):
    """The current state of a run. Times are microseconds since the epoch, UTC."""

    run_id: str
    agent: str | None = None
    thread: str | None = None
    turn_id: str = ""
    status: Status = "queued"
    phase: str = "prompted"
    reason: str = ""
    """Which limit brought it to its end, or why it was cancelled."""
    created_at: int = 0
    started_at: int | None = None
    """When a model was first called."""
    updated_at: int = 0
    labels: dict[str, str] = field(default_factory=dict[str, str])
    memo: dict[str, Any] = field(default_factory=dict[str, Any])
    search_attributes: dict[str, AttributeValue] = field(default_factory=dict[str, AttributeValue])
    task_queue: str = ""
    retry_policy: RetryPolicy = RetryPolicy()
    last_message: str | None = None
    """The latest text of the model."""
    awaits: tuple[Question, ...] = ()
    """The open questions to people."""
    calls: tuple[SnapshotCall, ...] = ()
    children: tuple[SnapshotChild, ...] = ()
    usage: Usage = Usage()
    """The usage of its own model calls so far."""
    usage_by_model: dict[str, Usage] = field(default_factory=dict[str, Usage])


class _PlanFields(Struct):
    """The fields that are needed from a plan, whatever its version."""

    labels: dict[str, str] = {}
    engine: EngineOptions | None = None


_decode_given = Decoder(_PlanFields).decode


class SnapshotFold:
    """Folds the facts of a run, in order."""

    def __init__(self, facts: RunFacts) -> None:
        self._projection = DetailProjection(facts)
        self._run = RunSnapshot(run_id=facts.run_id, agent=facts.agent, thread=facts.thread, turn_id=facts.turn_id)
        self._calls: dict[tuple[int, int], SnapshotCall] = {}
        self._places: dict[str, tuple[int, int]] = {}
        """The keys of `_calls`, by the ids of the calls."""
        self._children: dict[str, SnapshotChild] = {}
        self._awaits: dict[str, Question] = {}

    def take(self, head: Fact, body: bytes, *, seq: int, at: int) -> None:
        for detail in self._projection.of_fact(head, body, seq=seq, at=at):
            self._apply(detail)
        self._run = replace(self._run, updated_at=at)
        match head:
            case RunCreated():
                given = _decode_given(bodies.decode_created(body).plan)
                options = given.engine or EngineOptions()
                self._run = replace(
                    self._run,
                    created_at=at,
                    labels=given.labels,
                    memo=options.memo,
                    search_attributes=options.plain_attributes,
                    task_queue=options.task_queue,
                    retry_policy=options.retry_policy,
                )
            case TurnCompleted():
                text = bodies.decode_turn(body).message.text
                if text:
                    self._run = replace(self._run, last_message=text)
            case AwaitClosed():
                self._awaits.pop(head.id, None)
            case CallOpened():
                self._places.setdefault(head.id, (head.turn, head.index))
                self._calls[head.turn, head.index] = SnapshotCall(
                    id=head.id, name=head.name, turn=head.turn, parent_call=head.parent or None, scheduled_at=at
                )
            case CallStarted():
                self._change(head.turn, head.index, started_at=at, child_id=head.child or None)
                if head.child:
                    self._children[head.child] = SnapshotChild(run_id=head.child, call_id=head.id, name=head.name)
            case CallAsked():
                above = self._calls.get((head.turn, head.parent))
                if above is not None:
                    self._change(head.turn, head.parent, expected_children=above.expected_children + 1)
            case ChildEnded():
                if (child := self._children.get(head.child)) is not None:
                    self._children[head.child] = replace(child, status=head.status)
            case CallClosed():
                self._close(head, body, at=at)
            case RunEnded():
                self._awaits.clear()
                self._run = replace(self._run, status=head.status, reason=head.reason)
            case _:
                pass

    def _apply(self, detail: AnyDetail) -> None:
        run = self._run
        match detail:
            case _PhaseChanged():
                started = detail.at if run.started_at is None and detail.attempt else run.started_at
                self._run = replace(run, phase=detail.phase, started_at=started)
            case UsageRecorded():
                by_model = run.usage_by_model
                used = by_model | {detail.model: by_model.get(detail.model, Usage()) + detail.usage}
                self._run = replace(run, usage=run.usage + detail.usage, usage_by_model=used)
            case AwaitClarification() | AwaitQuestions() | AwaitConfirmation():
                self._awaits[detail.id] = detail
            case _:
                pass

    def _close(self, head: CallClosed, body: bytes, *, at: int) -> None:
        error = preview_of(joined_text(bodies.decode_closed(body).parts)) if head.is_error else None
        self._change(head.turn, head.index, completed_at=at, duration_ms=head.active_us // 1000, error=error)
        place = self._places.get(head.parent) if head.parent else None
        if place is not None:
            self._change(*place, observed_children=self._calls[place].observed_children + 1)

    def _change(self, turn: int, index: int, **changes: Any) -> None:
        call = self._calls.get((turn, index))
        if call is not None:
            self._calls[turn, index] = replace(call, **changes)

    def build(self, *, status: str, below: dict[str, tuple[int, int]]) -> RunSnapshot:
        """`status` is that of a run that has not ended. `below` has, for each child run, how many calls it asked for
        and how many of these have a result.
        """
        calls = [self._counted(call, below) for call in self._calls.values()]
        run = self._run
        return replace(
            run,
            status=run.status if run.status != "queued" else status,
            awaits=tuple(self._awaits.values()),
            calls=tuple(sorted(calls, key=lambda call: (call.scheduled_at, call.id))),
            children=tuple(self._children.values()),
        )

    def _counted(self, call: SnapshotCall, below: dict[str, tuple[int, int]]) -> SnapshotCall:
        if call.child_id is None or call.child_id not in below:
            return call
        expected, observed = below[call.child_id]
        return replace(call, expected_children=expected, observed_children=observed)

    @property
    def children(self) -> list[str]:
        """The ids of its child runs."""
        return list(self._children)


KINDS_OF_USAGE = (
    "attempt.started",
    "attempt.failed",
    "turn.completed",
    "compaction.started",
    "compaction.failed",
    "context.compacted",
)
"""The entries that `usage_by_model` needs; their bodies are not needed."""


def usage_by_model(heads: Iterable[Fact]) -> dict[str, Usage]:
    """The usage of the run's own calls, by model id, from the heads of these entries in order."""
    projection = DetailProjection(RunFacts(""))
    used: dict[str, Usage] = {}
    for head in heads:
        for detail in projection.of_fact(head, b"", seq=0, at=0):
            if isinstance(detail, UsageRecorded):
                used[detail.model] = used.get(detail.model, Usage()) + detail.usage
    return used
