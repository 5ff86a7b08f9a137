"""Budgets as JSON: amounts in dollars, tokens, seconds and calls."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType
from pydantic import Field, StringConstraints, ValidationError

from weftline.api.schemas.validation import refused
from weftline.errors import Issue, invalid
from weftline.kernel.policy import PARTS, Level, OnExceeded, Period, Unit, amount_issue, smallest
from weftline.store.budgets import Limit
from weftline.wire.json_text import decode_object
from weftline.wire.models import NO_NUL, Part
from weftline.wire.responses import Time, Warnings, iso
from weftline.wire.unknown_fields import UnknownField, shape_of, unknown_fields
from weftline.workspace.budgets import Budget, Use, setter

MAX_LIMITS = 12
"""Four units, three periods."""
_Id: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NO_NUL)]


class LimitModel(Part):
    """The most that may be spent and reserved: 0 permits nothing."""

    unit: Unit
    limit: Annotated[float, Field(allow_inf_nan=False, description="Dollars, tokens, seconds or calls.")]
    period: Annotated[Period, Field(description="In UTC; only for a workspace or an agent.")] = "total"
    onExceeded: OnExceeded = "final_turn"


class BudgetLimitsModel(Part):
    """The body that sets the limits of a workspace, an agent, a session, or a run that has a budget."""

    level: Literal["workspace", "agent", "thread", "run"]
    id: Annotated[_Id, Field(description="The id (or slug) of the agent, or the id of the session or run.")] | None = (
        None
    )
    limits: Annotated[list[LimitModel], Field(max_length=MAX_LIMITS)]


class LimitUse(Struct, rename="camel"):
    unit: Unit
    period: Period
    limit: float
    spent: float
    reserved: float
    remaining: float
    on_exceeded: OnExceeded
    set_by: str | UnsetType = UNSET
    set_at: Time | UnsetType = UNSET


class BudgetUse(Struct, rename="camel"):
    level: Level
    id: str | None
    limits: list[LimitUse]
    warnings: Warnings = UNSET


class Budgets(Struct):
    budgets: list[BudgetUse]


class SentBudget(Struct, frozen=True):
    level: Literal["workspace", "agent", "thread", "run"]
    id: str | None
    limits: list[Limit]
    unknown: list[UnknownField]


def parse_budget(body: bytes) -> SentBudget:
    """Parses a budget. Raises `InvalidRequest`."""
    fields = decode_object(body)
    try:
        sent = BudgetLimitsModel.model_validate(fields)
    except ValidationError as error:
        raise refused(error, BudgetLimitsModel, fields) from None
    issues = [
        Issue(f"limits[{place}].limit", issue)
        for place, one in enumerate(sent.limits)
        if (issue := amount_issue(one.unit, one.limit))
    ]
    if (sent.id is None) != (sent.level == "workspace"):
        issues.append(Issue("id", "give the agent, the session or the run; a workspace has none"))
    if issues:
        raise invalid(issues)
    limits = [Limit(one.unit, smallest(one.unit, one.limit), one.period, one.onExceeded) for one in sent.limits]
    return SentBudget(sent.level, sent.id, limits, list(unknown_fields(fields, shape_of(BudgetLimitsModel))))


def budget_json(budget: Budget, warnings: Warnings = UNSET) -> BudgetUse:
    return BudgetUse(budget.level, budget.id, [_use(one) for one in budget.limits], warnings)


def _use(use: Use) -> LimitUse:
    limit, parts = use.limit, PARTS[use.limit.unit]
    view = LimitUse(
        limit.unit,
        limit.period,
        _amount(limit.amount, parts),
        _amount(use.spent, parts),
        _amount(use.reserved, parts),
        _amount(use.remaining, parts),
        limit.on_exceeded,
    )
    if (known := setter(limit)) is not None:
        view.set_by, view.set_at = known[0], iso(known[1])
    return view


def _amount(amount: int, parts: int) -> float:
    return amount if parts == 1 else amount / parts
