"""Usage and cancel receipts."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weftline.events import ModelUsed
from weftline.events.decode import lenient


class Tokens(Struct, frozen=True, rename="camel"):
    """The tokens of all model calls of a run.

    `cached_tokens` and `cache_write_tokens` are part of the input, `reasoning_tokens` of the output.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


class Spent(Struct, frozen=True):
    """Usage of a run. `tokens` and `model` are None if the server did not report usage.

    `attempts` counts model calls, where `turns` counts each turn once. `cost_usd` is None when the price of some call
    is not known. `usage_estimated` is True if some call did not report what it used: the rest contains an estimate.
    """

    tokens: Tokens | None = None
    turns: int = 0
    model: ModelUsed | None = None
    attempts: int = 0
    cost_usd: float | None = None
    usage_estimated: bool = False


class CallName(Struct, frozen=True, rename="camel"):
    """One call, by its id and its tool's name."""

    tool_use_id: str = ""
    name: str = ""
    run_id: str = ""
    """The child run that made the call; empty if it was the run itself."""


class CancelReceipt(Struct, frozen=True, rename="camel"):
    """The outcome of a cancel: every call of the run and its child runs is in exactly one list.

    `status` is the run's status after the cancel: `cancelled`, or how it had ended before. Calls `in_doubt` were in
    progress and may have taken effect.
    """

    status: str = ""
    stopped: tuple[CallName, ...] = ()
    finished: tuple[CallName, ...] = ()
    in_doubt: tuple[CallName, ...] = ()


def spent_of(payload: dict[str, Any]) -> Spent:
    """Returns the usage in the last event of a run."""
    turns, attempts, cost = payload.get("turns"), payload.get("attempts"), payload.get("costUsd")
    model = lenient(payload.get("model"), ModelUsed)
    has_model = model is not None and bool(model.provider)
    return Spent(
        lenient(payload.get("tokens"), Tokens) if has_model or model is None else None,
        turns if isinstance(turns, int) else 0,
        model if has_model else None,
        attempts if isinstance(attempts, int) else 0,
        float(cost) if isinstance(cost, int | float) else None,
        payload.get("usageEstimated") is True,
    )
