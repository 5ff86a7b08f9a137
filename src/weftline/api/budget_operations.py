"""Sets and shows budgets, for commands on the store."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.json import encode

from weftline.api import budget_views
from weftline.api.budget_views import find_run
from weftline.api.operator import operator_name, operator_of
from weftline.api.schemas.budgets import BudgetUse, budget_json, parse_budget
from weftline.runtime.reads.finding import StoredNames
from weftline.store.base import LogReader, Store
from weftline.workspace import budgets
from weftline.workspace.context import Workspaces


class BudgetPage(Struct, frozen=True):
    """All budgets of a workspace or a run, which are few and small."""

    items: list[BudgetUse]
    after: None = None


class _Names(Struct, frozen=True):
    logs: LogReader
    names: StoredNames

    async def session_id(self, thread: int | None) -> str | None:
        return None if thread is None else await self.names.session(thread)


async def set_budget(at: Workspaces, store: Store, *, workspace: str, budget: dict[str, Any]) -> BudgetUse:
    """Sets a budget. `budget` is the same JSON as in the HTTP API."""
    sent = parse_budget(encode(budget))
    caller = await operator_of(at, workspace)
    about = await budget_views.subject(
        at, caller, _Names(store.log, StoredNames(store.records)), level=sent.level, id=sent.id
    )
    return budget_json(await budgets.set_limits(at, caller, about, sent.limits, by=operator_name()))


async def list_budgets(
    at: Workspaces, store: Store, *, workspace: str, run: str | None = None, after: int = 0
) -> BudgetPage:
    caller = await operator_of(at, workspace)
    logs = _Names(store.log, StoredNames(store.records))
    if run is None:
        found = await budget_views.of_workspace(at, caller, logs)
    else:
        row = await find_run(store.log, caller, run)
        found = await budget_views.of_run(at, logs, row)
    return BudgetPage([budget_json(one) for one in found])
