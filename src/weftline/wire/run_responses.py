"""The responses about runs, as types and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias, get_args

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import asdict

from weftline.errors import LOG_DAMAGED
from weftline.events.parts import ModelUsed, Tokens, UsageTriple, effort_name, tokens
from weftline.kernel.entries import Effect, How, ModelRef
from weftline.messages import Usage
from weftline.plan import PlanOutline
from weftline.wire.awaits import OpenAwait
from weftline.wire.limits import DEFAULT_RUN_NAME
from weftline.wire.responses import JsonObject, Ok, Time, Warnings, encode, iso, iso_or_none

_States: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"enum": ["awaiting", "opened", "started", "closed", "in_doubt"]})
]
_Effect: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(Effect))})]
_How: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(How))})]
_Time: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class Call(Struct, rename="camel", kw_only=True):
    """One call of a run, from its log."""

    run_id: str
    tool_use_id: str
    turn: int
    index: int
    name: str
    digest: str
    """The digest of the final arguments."""
    idempotency_key: str
    effect: _Effect
    state: _States
    how: _How | None
    """How it was closed."""
    attempts: int
    opened_at: _Time
    started_at: _Time | None
    closed_at: _Time | None
    client: str | None
    child_run_id: str | None
    parent_tool_use_id: str | None
    """The call whose code made this call; absent if the model made it."""
    args: Any = UNSET
    """The final arguments. These and the result are left out unless `contents` was asked for."""
    result: str | UnsetType | None = UNSET
    """What the model reads; null until there is a result."""
    ok: bool | UnsetType | None = UNSET


class CallPage(Struct, rename="camel"):
    calls: list[Call]
    next_cursor: str | None


Status: TypeAlias = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
WireStatus: TypeAlias = Literal["queued", "running", "succeeded", "failed", "cancelled"]
"""The status that clients see: a paused run counts as running."""
TERMINAL: frozenset[Status] = frozenset({"succeeded", "failed", "cancelled"})


def run_url(run_id: str, slug: str, *, root: str = "") -> str:
    """Returns the address of a run; `root` is the path that the server is mounted at."""
    return f"{root}/api/v1/workspaces/{slug}/agent-runs/{run_id}"


class CreatedRun(Struct, frozen=True, rename="camel"):
    run_id: str
    stream_url: str
    warnings: Warnings = UNSET


def created_run(run_id: str, url: str, warnings: Warnings = UNSET) -> bytes:
    """Returns the response; `url` is the run's."""
    return encode(CreatedRun(run_id, f"{url}/stream", warnings))


class AcceptedResult(Ok, frozen=True):
    """`ignored` means that the call was already closed."""

    ignored: bool | UnsetType = UNSET
    warnings: Warnings = UNSET


class CallName(Struct, frozen=True, rename="camel"):
    tool_use_id: str
    name: str
    run_id: str | UnsetType = UNSET
    """For a call of a run below: the id of that run."""


class ForkedFrom(Struct, frozen=True, rename="camel"):
    run_id: str
    turn: int


class CancelReceipt(Struct, frozen=True, rename="camel"):
    """What a cancel stopped, what had already finished, and what may or may not have happened."""

    status: Annotated[str, Meta(extra_json_schema={"enum": list(get_args(Status))})]
    stopped: list[CallName]
    finished: list[CallName]
    in_doubt: list[CallName]


class Cancelled(CancelReceipt, frozen=True, rename="camel"):
    """The answer to a cancel."""

    ok: Literal[True] = True


def usage_triple(usage: Usage, turns: int, model: ModelRef, *, attempts: int, estimated: bool = False) -> UsageTriple:
    return UsageTriple(
        tokens(usage),
        turns,
        attempts,
        model_used(model),
        True if estimated else UNSET,
    )


def model_used(model: ModelRef) -> ModelUsed:
    return ModelUsed(model.id, model.provider, model.vendor_id, effort_name(model.reasoning) or UNSET)


class RunView(Struct, frozen=True):
    """A run from its row. `final_text` is the partial text if the output was truncated."""

    id: str
    status: Status
    created_us: int
    spec: bytes
    session_id: str | None = None
    name: str = DEFAULT_RUN_NAME
    metadata: dict[str, str] = {}
    labels: dict[str, str] = {}
    started_us: int | None = None
    finished_us: int | None = None
    final_text: str | None = None
    error: str | None = None
    error_code: str | None = None
    error_class: str | None = None
    finish_reason: str | None = None
    reason: str | None = None
    """Why the run is paused, or which limit ended it."""
    usage: Usage = Usage()
    turns: int = 0
    attempts: int = 0
    model: ModelRef = ModelRef()
    cost_nusd: int | None = None
    """In billionths of a US dollar; None if any price is unknown."""
    estimated: bool = False
    """Whether `usage` and `cost_nusd` contain estimates."""
    in_doubt: Sequence[CallName] = ()
    forked_from: ForkedFrom | None = None
    outline: PlanOutline = PlanOutline()
    """Empty if the plan was not read, or retention has removed it."""
    parent: str | None = None


class FailureReason(Struct, rename="camel"):
    error_class: str
    finish_reason: str | None


class RunSummary(Struct, rename="camel", kw_only=True):
    id: str
    run_id: str
    session_id: str | None
    parent_run_id: str | None
    """For a child run: the run whose call it executes."""
    status: WireStatus
    paused: bool
    reason: str | None
    final_text: str | None
    error: str | None
    error_code: str | None
    """For a failed run: its class, or another lowercase word such as `max_tool_turns`."""
    failure_reason: FailureReason | None
    finish_reason: str | None
    """For a run with an answer: why the model stopped (`end_turn`, `refusal`, …)."""
    metadata: dict[str, str]
    name: str
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    tokens: Tokens | None
    turns: int | None
    attempts: int | None
    model: ModelUsed | None
    cost_usd: float | None
    usage_estimated: bool | None
    in_doubt: Sequence[CallName]
    """The last 16 calls that were interrupted and may or may not have happened."""


class Run(RunSummary, rename="camel", kw_only=True):
    spec: JsonObject
    agent_spec: JsonObject
    cancel_receipt: CancelReceipt | None
    """For a cancelled run, until retention removes its log."""
    awaits: Sequence[OpenAwait]
    """The first 50 open questions of the run and the runs below it."""
    forked_from: ForkedFrom | None
    """For a fork: its origin, and its first own turn, in the origin's count."""
    labels: dict[str, str]
    """The labels that it started with."""


class ListedRun(RunSummary, rename="camel", kw_only=True):
    agent_id: str | None


class RunPage(Struct, rename="camel"):
    runs: list[ListedRun]
    next_cursor: str | None


def snapshot(run: RunView, *, receipt: CancelReceipt | None = None, awaits: Sequence[OpenAwait] = ()) -> bytes:
    spec = Raw(run.spec)
    whole = Run(
        **asdict(_summary(run)),
        spec=spec,
        agent_spec=spec,
        cancel_receipt=receipt,
        awaits=awaits,
        forked_from=run.forked_from,
        labels=run.labels,
    )
    return encode(whole)


def listed_run(run: RunView, *, agent_id: str | None) -> ListedRun:
    """Returns the snapshot without the spec, which may be large."""
    return ListedRun(**asdict(_summary(run)), agent_id=agent_id)


def _summary(run: RunView) -> RunSummary:
    failed = run.status == "failed"
    unreadable = run.error_code in (LOG_DAMAGED, "unsupported_run")
    ended = run.status in TERMINAL
    used = usage_triple(run.usage, run.turns, run.model, attempts=run.attempts) if ended else None
    return RunSummary(
        id=run.id,
        run_id=run.id,
        session_id=run.session_id,
        parent_run_id=run.parent,
        status="running" if run.status == "paused" else run.status,
        paused=run.status == "paused",
        reason=run.reason,
        final_text=_final_text(run),
        error=run.error if failed or unreadable else None,
        error_code=run.error_code if failed or unreadable else None,
        failure_reason=FailureReason(run.error_class, run.finish_reason) if failed and run.error_class else None,
        finish_reason=run.finish_reason,
        metadata=run.metadata,
        name=run.name,
        created_at=iso(run.created_us),
        started_at=iso_or_none(run.started_us),
        finished_at=iso_or_none(run.finished_us),
        tokens=used.tokens if used else None,
        turns=used.turns if used else None,
        attempts=used.attempts if used else None,
        model=used.model if used else None,
        cost_usd=None if run.cost_nusd is None else run.cost_nusd / 1_000_000_000,
        usage_estimated=run.estimated if ended else None,
        in_doubt=run.in_doubt,
    )


def _final_text(run: RunView) -> str | None:
    if run.status == "succeeded":
        return run.final_text or ""
    return run.final_text if run.status == "failed" and run.error_class == "truncation" else None
