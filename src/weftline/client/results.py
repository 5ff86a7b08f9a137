"""What the server's answers amount to: results of runs, snapshots, sessions, models."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, field

from weftline.client.errors import NetworkError
from weftline.client.events import Event
from weftline.client.usage import ModelUsed, Tokens

T = TypeVar("T")


class RunResult(Struct, frozen=True):
    """A run that succeeded. `tokens` and `model` are None when the server told nothing about usage.

    `output` is the final text as the run's `output_type`, when it was given one.
    """

    run_id: str
    text: str
    tokens: Tokens | None = None
    turns: int = 0
    model: ModelUsed | None = None
    events: tuple[Event, ...] = ()
    output: Any = None


class FailureReason(Struct, frozen=True, rename="camel"):
    error_class: str | None = None
    finish_reason: str | None = None


class RunSnapshot(Struct, frozen=True, rename="camel"):
    """A run as it is now. `status` is queued, running, succeeded, failed or cancelled."""

    id: str
    status: str
    session_id: str | None = None
    name: str = ""
    final_text: str | None = None
    error: str | None = None
    failure_reason: FailureReason | None = None
    spec: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    created_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    tokens: Tokens | None = None
    turns: int | None = None
    model: ModelUsed | None = None
    paused: bool = False
    reason: str | None = None

    @property
    def ended(self) -> bool:
        return self.status in ("succeeded", "failed", "cancelled")


class ChatMessage(Struct, frozen=True):
    role: str
    content: str


class SessionInfo(Struct, frozen=True, rename="camel"):
    """A session as it is now. `status` is active or ended; a page of sessions comes without their messages."""

    id: str
    status: str = "active"
    name: str = ""
    created_at: str | None = None
    last_used_at: str | None = None
    ended_at: str | None = None
    agent_spec: dict[str, Any] = {}
    messages: tuple[ChatMessage, ...] = ()
    metadata: dict[str, str] = {}


class Pricing(Struct, frozen=True):
    """US dollars per million tokens."""

    input_per_1m_usd: float | None = field(default=None, name="inputPer1MUsd")
    output_per_1m_usd: float | None = field(default=None, name="outputPer1MUsd")
    cache_read_per_1m_usd: float | None = field(default=None, name="cacheReadPer1MUsd")


class ModelInfo(Struct, frozen=True, rename="camel"):
    id: str
    label: str = ""
    provider: str = ""
    vendor_model_id: str = ""
    source: str = ""
    context_window_tokens: int | None = None
    pricing: Pricing | None = None

    def cost_usd(self, tokens: Tokens) -> float | None:
        """What `tokens` cost by the catalog's prices; None when it has none for this model."""
        price = self.pricing
        if price is None or price.input_per_1m_usd is None or price.output_per_1m_usd is None:
            return None
        cached_price = price.cache_read_per_1m_usd
        cached = tokens.cached_tokens if cached_price is not None else 0
        whole = (tokens.input_tokens - cached) * price.input_per_1m_usd + cached * (cached_price or 0.0)
        return (whole + tokens.output_tokens * price.output_per_1m_usd) / 1_000_000


class Models(Struct, frozen=True, rename="camel"):
    models: tuple[ModelInfo, ...] = ()
    default_model_id: str | None = None


class Page(Struct, Generic[T], frozen=True):
    """One page of a list, newest first. `next_cursor` asks for the next one; None at the end."""

    items: tuple[T, ...]
    next_cursor: str | None = None


class CancelReceipt(Struct, frozen=True):
    """`status` is the run's after the call: `cancelled`, or how it had ended before."""

    status: str = ""


class Totals(Struct):
    """Usage of the runs that a client or a session has seen end."""

    runs: int = 0
    turns: int = 0
    tokens: Tokens = Tokens()

    def add(self, *, turns: int, tokens: Tokens | None) -> None:
        self.runs += 1
        self.turns += turns
        if tokens is not None:
            self.tokens = self.tokens + tokens


def decoded(body: bytes, kind: type[T]) -> T:
    """A 2xx body as `kind`."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NetworkError(f"the server's answer is not what the protocol promises: {error}") from error
