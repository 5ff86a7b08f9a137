"""The `budget` of a run's spec, as a pydantic model."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from weftline.kernel.policy import OnExceeded, Unit, amount_issue, greatest


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
    """What the run may spend, with all below it: 0 permits nothing. It only validates.

    A misspelt limit would be one that does not hold, so nothing unknown is let through.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    usd: _Usd | None = None
    tokens: _Tokens | None = None
    seconds: _Seconds | None = None
    calls: _Calls | None = None
    onExceeded: OnExceeded | None = None
