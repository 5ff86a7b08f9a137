"""The current state of a run in the protocol's format, projected from its whole log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, TypeAlias, get_args

from msgspec import Meta, Raw, Struct
from msgspec.json import encode
from msgspec.structs import asdict

from weftline.engine_options import AttributeValue, RetryPolicy
from weftline.events.details import Phase
from weftline.events.snapshot import Question, RunSnapshot, SnapshotCall, SnapshotChild, Status
from weftline.events.wire import type_of, wire_name
from weftline.spec.fields import TIME
from weftline.wire.responses import JsonObject, Time, iso
from weftline.wire.run_responses import Tokens, tokens

_Status: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(Status))})]
_Phase: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(Phase))})]
_ABOUT = ("run_id", "seq", "key", "at", "agent", "thread", "turn_id")


class OpenQuestion(Struct, rename="camel"):
    """An open question: `kind` is the type of its event, and `payload` has that event's fields."""

    await_id: str
    kind: str
    opened_at: Time
    payload: JsonObject


class SnapshotToolCall(Struct, rename="camel", kw_only=True):
    tool_use_id: str
    name: str
    turn: int
    parent_tool_use_id: str | None
    scheduled_at: Time
    started_at: Time | None
    completed_at: Time | None
    duration_ms: int | None
    error: str | None
    """What the model reads about a failure, on one line."""
    child_run_id: str | None
    expected_children: int
    """How many calls were made below it, by the code that it runs or by its child run."""
    observed_children: int
    """How many of them have a result."""


class SnapshotChildRun(Struct, rename="camel"):
    run_id: str
    tool_use_id: str
    name: str
    status: _Status


class StoredRetryPolicy(Struct, rename="camel"):
    max_attempts: int
    initial_interval_ms: int
    backoff_coefficient: float


class WireSnapshot(Struct, rename="camel", kw_only=True):
    """The current state of a run."""

    run_id: str
    agent: str | None
    session_id: str | None
    turn_id: str
    status: _Status
    phase: _Phase
    reason: str | None
    """Which limit ended it, or why it was cancelled."""
    created_at: Time
    started_at: Time | None
    updated_at: Time
    labels: dict[str, str]
    memo: dict[str, Any]
    search_attributes: dict[str, Any]
    task_queue: str | None
    retry_policy: StoredRetryPolicy
    last_message: str | None
    """The latest text of the model."""
    awaits: list[OpenQuestion]
    tool_calls: list[SnapshotToolCall]
    child_runs: list[SnapshotChildRun]
    tokens: Tokens
    """Of its own model calls so far."""
    tokens_by_model: dict[str, Tokens]


def to_wire_snapshot(run: RunSnapshot) -> WireSnapshot:
    return WireSnapshot(
        run_id=run.run_id,
        agent=run.agent,
        session_id=run.thread,
        turn_id=run.turn_id,
        status=run.status,
        phase=run.phase,
        reason=run.reason or None,
        created_at=iso(run.created_at),
        started_at=_time(run.started_at),
        updated_at=iso(run.updated_at),
        labels=run.labels,
        memo=run.memo,
        search_attributes=_attributes(run.search_attributes),
        task_queue=run.task_queue or None,
        retry_policy=_retry(run.retry_policy),
        last_message=run.last_message,
        awaits=[_question(one) for one in run.awaits],
        tool_calls=[_call(one) for one in run.calls],
        child_runs=[_child(one) for one in run.children],
        tokens=tokens(run.usage),
        tokens_by_model={model: tokens(used) for model, used in run.usage_by_model.items()},
    )


def _time(us: int | None) -> str | None:
    return None if us is None else iso(us)


def _question(one: Question) -> OpenQuestion:
    fields = {wire_name(name): value for name, value in asdict(one).items() if name not in _ABOUT}
    return OpenQuestion(one.id, type_of(type(one)), iso(one.at), Raw(encode(fields)))


def _call(one: SnapshotCall) -> SnapshotToolCall:
    return SnapshotToolCall(
        tool_use_id=one.id,
        name=one.name,
        turn=one.turn,
        parent_tool_use_id=one.parent_call,
        scheduled_at=iso(one.scheduled_at),
        started_at=_time(one.started_at),
        completed_at=_time(one.completed_at),
        duration_ms=one.duration_ms,
        error=one.error,
        child_run_id=one.child_id,
        expected_children=one.expected_children,
        observed_children=one.observed_children,
    )


def _child(one: SnapshotChild) -> SnapshotChildRun:
    return SnapshotChildRun(one.run_id, one.call_id, one.name, one.status)


def _attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, Any]:
    return {
        name: {TIME: value.isoformat()} if isinstance(value, datetime) else value for name, value in attributes.items()
    }


def _retry(policy: RetryPolicy) -> StoredRetryPolicy:
    interval_ms = round(policy.initial_interval_s * 1000)
    return StoredRetryPolicy(policy.max_attempts, interval_ms, policy.backoff_coefficient)
