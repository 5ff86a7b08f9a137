"""Continues the runs that ask a person about a limit, after the limit was raised."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from weftline.errors import Conflict, NotFound
from weftline.kernel.accept import accepts
from weftline.kernel.entries import AwaitClosed
from weftline.runtime.budgets.ledger import Ledger
from weftline.runtime.budgets.reserving import raised
from weftline.runtime.fleet.residents import Residents
from weftline.runtime.fleet.roles import RunLoader
from weftline.runtime.live import LiveRun
from weftline.store.base import LogReader
from weftline.store.rows import AwaitFilter

logger = logging.getLogger(__name__)

_PAGE = 200

Append: TypeAlias = Callable[[LiveRun, AwaitClosed], Awaitable[None]]


async def wake_waiting(
    store: LogReader,
    ledger: Ledger,
    residents: Residents,
    loader: RunLoader,
    *,
    workspace: int,
    append: Append,
    by: str = "",
) -> None:
    """`by` is who raised it, unless the limits themselves record that."""
    # The await of a run in memory may not be in the store yet.
    for run in [run for run in residents.runs.values() if run.workspace == workspace]:
        await _wake(run, ledger, append, by=by)
    after = (0, "")
    while found := await store.awaits(
        AwaitFilter(workspace=workspace, kinds=("budget",), after=after, limit=_PAGE, max_bytes=0)
    ):
        for one in found:
            after = (one.run, one.id)
            try:
                run = await loader.load(one.run)
            except (NotFound, Conflict) as error:
                logger.warning("a run that waits for its budget is skipped: %s", error.message)
                continue
            await _wake(run, ledger, append, by=by)


async def _wake(run: LiveRun, ledger: Ledger, append: Append, *, by: str) -> None:
    state, account = run.state, run.work.account
    refused, asks = state.budget.refused, state.control.held_by
    if refused is None or account is None or not asks or not ledger.is_raised(refused, account.rules):
        return
    head = raised(state, asks, ledger, by=by)
    if state.questions.open[asks].kind == "budget" and accepts(state, head):
        await append(run, head)
