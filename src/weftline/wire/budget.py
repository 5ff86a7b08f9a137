"""The `budget` of a run's spec, as it was sent. It was checked on arrival, and is trusted here."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Raw, Struct, json
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from weftline.kernel.amounts import PARTS, amount_issue, greatest, smallest
from weftline.kernel.budget import BudgetRule, OnExceeded, Unit
from weftline.wire.json_text import encode


def _checked(unit: Unit) -> AfterValidator:
    """Checks a number. Not `Field(ge=…)`, so that the error message is the same everywhere."""

    def check(amount: float) -> float:
        if issue := amount_issue(unit, amount):
            raise PydanticCustomError("amount", "{issue}", {"issue": issue})
        return amount

    return AfterValidator(check)


def _bounds(unit: Unit) -> Any:
    return Field(json_schema_extra={"minimum": 0, "maximum": greatest(unit)})


_Usd: TypeAlias = Annotated[float, _checked("usd"), _bounds("usd")]
_Seconds: TypeAlias = Annotated[float, _checked("seconds"), _bounds("seconds")]
_Tokens: TypeAlias = Annotated[int, _checked("tokens"), _bounds("tokens")]
_Calls: TypeAlias = Annotated[int, _checked("calls"), _bounds("calls")]


class BudgetModel(BaseModel):
    """What the run may spend, with all runs below it: 0 permits nothing. It only validates.

    Unknown fields are refused, as a misspelt limit would not apply.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    usd: _Usd | None = None
    tokens: _Tokens | None = None
    seconds: _Seconds | None = None
    calls: _Calls | None = None
    onExceeded: OnExceeded | None = None


class WireBudget(Struct, rename="camel", omit_defaults=True):
    usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    calls: int | None = None
    on_exceeded: OnExceeded | None = None

    @property
    def rule(self) -> BudgetRule | None:
        """Returns the rule; None if it limits nothing."""
        rule = BudgetRule(
            None if self.usd is None else smallest("usd", self.usd),
            self.tokens,
            None if self.seconds is None else smallest("seconds", self.seconds),
            self.calls,
            self.on_exceeded or "final_turn",
        )
        unlimited = rule.nusd is None and rule.tokens is None and rule.active_us is None and rule.calls is None
        return None if unlimited else rule


_decode = json.Decoder(WireBudget).decode


def budget_within(own: Raw, above: Raw) -> Raw:
    """Returns the tighter of two budgets: the run's own, and that of its agent or session."""
    one, other = _decode(own), _decode(above)
    rule = (one.rule or BudgetRule(on_exceeded=other.on_exceeded or "final_turn")).within(other.rule)
    tight = WireBudget(
        None if rule.nusd is None else rule.nusd / PARTS["usd"],
        rule.tokens,
        None if rule.active_us is None else rule.active_us / PARTS["seconds"],
        rule.calls,
        rule.on_exceeded,
    )
    return Raw(encode(tight))
