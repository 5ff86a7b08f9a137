"""The engine's methods for budgets: setting limits during runs, and reading what is spent."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from weftline.agent.definition import Definition
from weftline.agent.planning.sources import AgentTools
from weftline.agent.settings import Budget
from weftline.agent.threads import Thread
from weftline.errors import InvalidRequest, NotFound
from weftline.kernel.policy import Level, OnExceeded, Period, Unit
from weftline.runtime.engine import Engine
from weftline.runtime.people.answering import NAMELESS
from weftline.store.budgets import Limit, SetLimit, agent_account, limits_of, thread_account
from weftline.workspace import agents
from weftline.workspace.context import Workspaces

if TYPE_CHECKING:  # loaded on first use, as the bodies of requests come with it
    from weftline.cases import budgets

T = TypeVar("T")


class LimitUse(Struct, frozen=True):
    """A limit and what is spent of it, in US dollars, tokens, seconds or tool calls."""

    unit: Unit
    period: Period
    limit: float
    spent: float
    reserved: float
    """Reserved for calls in progress."""
    remaining: float
    on_exceeded: OnExceeded
    set_by: str = ""
    """Who set it; empty for a limit that the run was started with."""
    set_at: datetime | None = None


class BudgetUse(Struct, frozen=True):
    """The limits of a workspace, an agent, a thread, a run or a child run."""

    level: Level
    id: str | None
    """None for the workspace; for a code agent, its name."""
    limits: tuple[LimitUse, ...]


class _Caller(Struct, frozen=True):
    """The owner of the engine may see everything in its workspace."""

    workspace: int
    agents: tuple[str, ...] = ()


class BudgetMethods:
    """The budget methods of `Engine`."""

    workspaces: Workspaces
    _workspace: int
    _tools: AgentTools

    if TYPE_CHECKING:

        @property
        def durable(self) -> bool: ...
        async def _on_engine_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
        async def runtime(self) -> Engine: ...
        def thread(self, name: str) -> Thread: ...

    async def set_budget(
        self,
        budget: Budget | None = None,
        *,
        per_day: Budget | None = None,
        per_month: Budget | None = None,
        agent: Definition[Any, Any] | str | None = None,
        thread: str | None = None,
        run_id: str | None = None,
        by: str = NAMELESS,
    ) -> BudgetUse:
        """Replaces the limits of the engine's workspace, an agent, a thread or a run.

        They apply from the next call of every run. A run that waits because a call did not fit (`on_exceeded="ask"`)
        continues if its limit is raised, and its log says by whom. Without any budget the limits are removed; a run
        then has those that it was started with.

        Args:
            budget: For all time.
            per_day: For each day of UTC, for a workspace or an agent only.
            per_month: For each month of UTC, likewise.
            agent: An agent of this engine or its name, or the id or slug of a stored agent.
            thread: The name or the id of a thread.
            run_id: A run that was started with a budget and has not ended.
            by: Who approves it.

        Raises:
            InvalidRequest: If a thread or a run is given limits per day or month.
            Conflict: If the run has ended, or was started without a budget.
            NotFound: If there is no such agent, thread or run.
        """
        if sum([one is not None for one in (agent, thread, run_id)]) > 1:
            raise InvalidRequest("Give one of agent=, thread= and run_id=, or none of them for the workspace.")
        limits = [*_limits(budget, "total"), *_limits(per_day, "day"), *_limits(per_month, "month")]

        async def work() -> BudgetUse:
            from weftline.cases import budgets

            about = await self._budget_subject(agent, thread, run_id)
            caller = _Caller(self._workspace)
            return _view(await budgets.set_limits(self.workspaces, caller, about, limits, by=by))

        return await self._on_engine_loop(work)

    async def budgets(self, *, run_id: str | None = None) -> list[BudgetUse]:
        """The limits that were set in the engine's workspace, with what is spent and reserved.

        With `run_id` those that apply to a run, nearest first, its own included.
        """

        async def work() -> list[BudgetUse]:
            from weftline.cases import budgets

            host, at = await self.runtime(), self.workspaces
            if run_id is None:
                found = await budgets.of_workspace(at, _Caller(self._workspace), host.stored, any_code=True)
            else:
                row = await host.stored.find(run_id, workspace=self._workspace)
                found = await budgets.over_run(at, host.stored, row)
            return [_view(one) for one in found]

        return await self._on_engine_loop(work)

    async def _budget_subject(
        self, agent: Definition[Any, Any] | str | None, thread: str | None, run_id: str | None
    ) -> budgets.Subject:
        from weftline.cases.budgets import Subject, subject

        host, caller = await self.runtime(), _Caller(self._workspace)
        if agent is not None:
            name = await self._agent_id(agent)
            return Subject(agent_account(self._workspace, name), name)
        if thread is not None:
            key = await self.thread(thread).key()
            return Subject(thread_account(key), await host.stored.session_id(key))
        level = "workspace" if run_id is None else "run"
        return await subject(self.workspaces, caller, host.stored, level=level, id=run_id)

    async def _agent_id(self, agent: Definition[Any, Any] | str) -> str:
        if not isinstance(agent, str):
            if agent.name is None:
                raise InvalidRequest("An agent with a budget needs a name: Agent(…, name='billing').")
            return agent.name
        if agent in self._tools.agents:
            return agent
        if not self.durable:
            raise NotFound(f"There is no agent {agent!r} in this engine.")
        return (await agents.find_visible(self.workspaces, _Caller(self._workspace), agent)).id


def _limits(budget: Budget | None, period: Period) -> list[Limit]:
    if budget is None:
        return []
    if not isinstance(budget, Budget):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"A budget must be a Budget, not {type(budget).__name__}.")
    return [Limit(one.unit, one.amount, period, one.on_exceeded) for one in limits_of(budget.rule)]


def _view(budget: budgets.Budget) -> BudgetUse:
    return BudgetUse(budget.level, budget.id, tuple([_use(one) for one in budget.limits]))


def _use(use: budgets.Use) -> LimitUse:
    limit = use.limit
    by, at = (
        (limit.set_by, datetime.fromtimestamp(limit.set_at / 1_000_000, UTC))
        if isinstance(limit, SetLimit)
        else ("", None)
    )
    return LimitUse(limit.unit, limit.period, *use.amounts, limit.on_exceeded, by, at)
