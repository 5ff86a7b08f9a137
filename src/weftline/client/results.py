"""Answers of the server: results of runs, snapshots, sessions, models."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, field

from weftline.client.errors import NetworkError
from weftline.client.events import ClientEvent, Frame
from weftline.client.usage import CallName, CancelReceipt, Spent, Tokens
from weftline.events import ModelUsed

T = TypeVar("T")


class RunResult(Struct, frozen=True):
    """A run that succeeded. `tokens` and `model` are None if the server did not report usage.

    `output` is the final text as the run's `output_type`, if it has one. `attempts` counts model calls, where
    `turns` counts each turn once. `cost_usd` is None when the price of some call is not known. `usage_estimated` says
    that some call did not report what it used, so that `tokens` and `cost_usd` contain an estimate. `cancel_receipt` is
    the response to a cancel that came too late.
    """

    run_id: str
    text: str
    tokens: Tokens | None = None
    turns: int = 0
    model: ModelUsed | None = None
    frames: tuple[Frame, ...] = ()
    """The events, each with its payload."""
    output: Any = None
    attempts: int = 0
    finish_reason: str | None = None
    """Why the model stopped: `end_turn`, or `refusal` if the model or a filter refused to answer."""
    cost_usd: float | None = None
    cancel_receipt: CancelReceipt | None = None
    usage_estimated: bool = False

    def __repr__(self) -> str:
        """One line, without the events."""
        return f"<RunResult {self._facts}>"

    def __str__(self) -> str:
        return f"{self.text}\n\n[{self._facts}]"

    @property
    def _facts(self) -> str:
        used = self.tokens
        of = {"turn": self.turns, "token": 0 if used is None else used.input_tokens + used.output_tokens}
        counts = [f"{count:,} {name}{'s' * (count != 1)}" for name, count in of.items() if count]
        cost = [] if self.cost_usd is None else [f"${self.cost_usd:.4f}"]
        return ", ".join([f"{self.run_id} succeeded", *counts, *cost])

    @property
    def events(self) -> tuple[ClientEvent, ...]:
        return tuple([frame.event for frame in self.frames])


class FailureReason(Struct, frozen=True, rename="camel"):
    error_class: str | None = None
    finish_reason: str | None = None


class ForkedFrom(Struct, frozen=True, rename="camel"):
    """The run that a fork continues, and the fork's first own turn."""

    run_id: str
    turn: int


class RunSnapshot(Struct, frozen=True, rename="camel"):
    """A run as it is now. `status` is queued, running, succeeded, failed or cancelled.

    `cost_usd` is None before the end, and when the price of some model call is not known; it contains an estimate if
    `usage_estimated` is True. Calls `in_doubt` were cut off and may or may not have happened.
    """

    id: str
    status: str
    session_id: str | None = None
    parent_run_id: str | None = None
    """Set if the run executes a call of another one."""
    name: str = ""
    final_text: str | None = None
    error: str | None = None
    failure_reason: FailureReason | None = None
    finish_reason: str | None = None
    spec: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    labels: dict[str, str] = {}
    created_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    tokens: Tokens | None = None
    turns: int | None = None
    model: ModelUsed | None = None
    paused: bool = False
    reason: str | None = None
    attempts: int | None = None
    cost_usd: float | None = None
    cancel_receipt: CancelReceipt | None = None
    """Set if the run was cancelled; missing on a page of runs."""
    usage_estimated: bool | None = None
    error_code: str | None = None
    """Set if the run failed: its error class, or another lowercase word such as `max_tool_turns`."""
    in_doubt: tuple[CallName, ...] = ()
    forked_from: ForkedFrom | None = None
    """Missing on a page of runs."""

    @property
    def ended(self) -> bool:
        return self.status in ("succeeded", "failed", "cancelled")


class AttachmentInfo(Struct, frozen=True, rename="camel"):
    """An attachment of a session's message, without its content."""

    media_type: str = ""
    name: str | None = None
    url: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None


class LoggedCall(Struct, frozen=True, rename="camel"):
    """A call of a run, from the server's log."""

    run_id: str
    id: str = field(name="toolUseId")
    turn: int
    index: int
    name: str
    digest: str
    """The digest of the final arguments."""
    idempotency_key: str
    effect: str
    state: str
    """`awaiting` a person, `opened`, `started`, `closed` or `in_doubt`."""
    how: str | None = None
    """How it was closed."""
    attempts: int = 0
    opened_at: datetime | None = None
    started_at: datetime | None = None
    closed_at: datetime | None = None
    client: str | None = None
    child_run_id: str | None = None


class ChatMessage(Struct, frozen=True, rename="camel"):
    """A message of a session."""

    role: str
    content: str
    attachments: tuple[AttachmentInfo, ...] = ()
    id: str = ""
    run_id: str = ""
    """The run that it was sent to, or that has answered with it."""
    created_at: datetime | None = None
    """When that run was created; for its answers, when it ended."""
    calls: tuple[LoggedCall, ...] = ()
    """With a run's last answer, the calls of the run, if they were asked for."""


class SessionUsage(Struct, frozen=True, rename="camel"):
    """Usage of the ended runs of a session. `cost_usd` is None if the price of some call is not known.

    `usage_estimated` is True if some call did not report what it used: `tokens` and `cost_usd` contain an estimate.
    """

    runs: int = 0
    turns: int = 0
    attempts: int = 0
    tokens: Tokens = Tokens()
    cost_usd: float | None = None
    usage_estimated: bool = False


class SessionInfo(Struct, frozen=True, rename="camel"):
    """A session as it is now. `status` is active or ended.

    On a page of sessions there are no messages and no usage.
    """

    id: str
    status: str = "active"
    name: str = ""
    created_at: str | None = None
    last_used_at: str | None = None
    ended_at: str | None = None
    agent_spec: dict[str, Any] = {}
    messages: tuple[ChatMessage, ...] = ()
    metadata: dict[str, str] = {}
    usage: SessionUsage | None = None


class Pricing(Struct, frozen=True):
    """US dollars per million tokens."""

    input_per_1m_usd: float | None = field(default=None, name="inputPer1MUsd")
    output_per_1m_usd: float | None = field(default=None, name="outputPer1MUsd")
    cache_read_per_1m_usd: float | None = field(default=None, name="cacheReadPer1MUsd")


class ModelInfo(Struct, frozen=True, rename="camel"):
    """A model of the catalog. `id` is what `model_id` takes."""

    id: str
    label: str = ""
    provider: str = ""
    vendor_model_id: str = ""
    source: str = ""
    context_window_tokens: int | None = None
    pricing: Pricing | None = None

    def cost_usd(self, tokens: Tokens) -> float | None:
        """Returns the cost of `tokens` at the catalog's prices; None if it has none for this model."""
        price = self.pricing
        if price is None or price.input_per_1m_usd is None or price.output_per_1m_usd is None:
            return None
        cached_price = price.cache_read_per_1m_usd
        cached = tokens.cached_tokens if cached_price is not None else 0
        whole = (tokens.input_tokens - cached) * price.input_per_1m_usd + cached * (cached_price or 0.0)
        return (whole + tokens.output_tokens * price.output_per_1m_usd) / 1_000_000


class Models(Struct, frozen=True, rename="camel"):
    """The catalog of the workspace. `default_model_id` is used by runs that name no model."""

    models: tuple[ModelInfo, ...] = ()
    default_model_id: str | None = None


class Page(Struct, Generic[T], frozen=True):
    """One page of a list. `next_cursor` asks for the next one; None at the end."""

    items: tuple[T, ...]
    next_cursor: str | None = None


class Totals(Struct):
    """The usage of the runs whose end a client or a session has seen.

    `cost_usd` is None as soon as one of them has no known cost; `usage_estimated` is True as soon as one of them has
    estimates.
    """

    runs: int = 0
    turns: int = 0
    tokens: Tokens = Tokens()
    attempts: int = 0
    cost_usd: float | None = 0.0
    usage_estimated: bool = False

    def add(self, spent: Spent) -> None:
        self.runs += 1
        self.turns += spent.turns
        self.attempts += spent.attempts
        if spent.tokens is not None:
            self.tokens = self.tokens + spent.tokens
        self.usage_estimated = self.usage_estimated or spent.usage_estimated
        known = self.cost_usd is not None and spent.cost_usd is not None
        self.cost_usd = (self.cost_usd or 0.0) + (spent.cost_usd or 0.0) if known else None


def decoded(body: bytes, kind: type[T]) -> T:
    """Decodes a 2xx body as `kind`."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NetworkError(f"the server's response does not follow the protocol: {error}") from error
