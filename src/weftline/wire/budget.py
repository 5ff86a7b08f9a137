"""The `budget` of a run's spec, as it was sent: checked on arrival, and trusted here."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Raw, Struct, json
from pydantic import BaseModel, ConfigDict, Field

from weftline.kernel.budget import BudgetRule, OnExceeded
from weftline.wire.json_text import encode

NUSD, US = 1_000_000_000, 1_000_000
_Amount: TypeAlias = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
_Seconds: TypeAlias = Annotated[float, Field(ge=0, le=1_000_000_000, allow_inf_nan=False)]
_Count: TypeAlias = Annotated[int, Field(ge=0, le=10**15)]


class BudgetModel(BaseModel):
    """What the run may spend, with all below it: 0 permits nothing. It only validates.

    A misspelt limit would be one that does not hold, so nothing unknown is let through.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    usd: _Amount | None = None
    tokens: _Count | None = None
    seconds: _Seconds | None = None
    calls: _Count | None = None
    onExceeded: OnExceeded | None = None


class WireBudget(Struct, rename="camel", omit_defaults=True):
    usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    calls: int | None = None
    on_exceeded: OnExceeded | None = None

    @property
    def rule(self) -> BudgetRule | None:
        """None if it limits nothing."""
        rule = BudgetRule(
            None if self.usd is None else round(self.usd * NUSD),
            self.tokens,
            None if self.seconds is None else round(self.seconds * US),
            self.calls,
            self.on_exceeded or "final_turn",
        )
        unlimited = rule.nusd is None and rule.tokens is None and rule.active_us is None and rule.calls is None
        return None if unlimited else rule


_decode = json.Decoder(WireBudget).decode


def budget_within(own: Raw, above: Raw) -> Raw:
    """The tighter of two: what a run may spend that asked for `own` under its agent's or its session's."""
    one, other = _decode(own), _decode(above)
    rule = (one.rule or BudgetRule(on_exceeded=other.on_exceeded or "final_turn")).within(other.rule)
    tight = WireBudget(
        None if rule.nusd is None else rule.nusd / NUSD,
        rule.tokens,
        None if rule.active_us is None else rule.active_us / US,
        rule.calls,
        rule.on_exceeded,
    )
    return Raw(encode(tight))
