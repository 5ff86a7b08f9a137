"""Budgets: what a workspace, an agent, a session or a run may spend, and what it has spent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec import Struct

from weftline.client.errors import warn_of
from weftline.client.http import Http
from weftline.client.results import decoded

Level: TypeAlias = Literal["workspace", "agent", "thread", "run"]


class BudgetLimit(Struct, frozen=True, rename="camel"):
    """A limit, and what is spent and reserved: US dollars, tokens, seconds or tool calls."""

    unit: str
    limit: float
    period: str = "total"
    """`total`, or `day` or `month` of UTC for a workspace or an agent."""
    on_exceeded: str = "final_turn"
    """What happens if a run's next call does not fit.

    The run answers in one more turn without tools, fails (`stop`), or waits until somebody raises the limit (`ask`).
    """
    spent: float = 0
    reserved: float = 0
    """Reserved for calls in progress."""
    remaining: float = 0
    set_by: str = ""
    set_at: datetime | None = None


class Budget(Struct, frozen=True):
    """The limits of a workspace, an agent, a session (`thread`), a run or a child run, by its id."""

    level: str
    limits: tuple[BudgetLimit, ...]
    id: str | None = None


class _Response(Struct):
    warnings: Any = None


class _Budgets(Struct):
    budgets: tuple[Budget, ...]


class AsyncBudgets:
    """The budgets of a workspace: `client.budgets`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self) -> tuple[Budget, ...]:
        """Returns the budgets with limits, and what is spent and reserved."""
        return decoded(await self._http.call("GET", "/budgets"), _Budgets).budgets

    async def set(self, level: Level, id: str | None = None, *, limits: Sequence[BudgetLimit]) -> Budget:
        """Replaces the limits of the workspace, an agent, a session or a run; with none, it is unlimited.

        They apply from the next call of every run. A run that waits because a call did not fit continues if its limit
        is raised. What was spent before the first limit is not counted. A run must have been started with a budget;
        with no limits it has that one again.

        Args:
            id: The id of the agent (or its slug), the session (level `thread`) or the run.
            limits: `unit`, `limit`, `period` and `on_exceeded` of each.
        """
        given = [
            {"unit": one.unit, "limit": one.limit, "period": one.period, "onExceeded": one.on_exceeded}
            for one in limits
        ]
        body = {"level": level, "limits": given} | ({} if id is None else {"id": id})
        made = await self._http.call("PUT", "/budgets", body=msgspec.json.encode(body))
        warn_of(decoded(made, _Response).warnings)
        return decoded(made, Budget)

    async def of_run(self, run_id: str) -> tuple[Budget, ...]:
        """Returns the budgets that apply to a run, the nearest first."""
        path = f"/agent-runs/{quote(run_id, safe='')}/budgets"
        return decoded(await self._http.call("GET", path), _Budgets).budgets
