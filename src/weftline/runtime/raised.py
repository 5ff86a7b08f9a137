"""A limit was raised: the runs that ask a person about it go on."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from weftline.errors import Conflict, NotFound
from weftline.kernel.accept import accepts
from weftline.kernel.entries import OF_RUN, AwaitClosed
from weftline.runtime.budgets import Ledger
from weftline.runtime.live import LiveRun
from weftline.store.awaits import AwaitFilter
from weftline.store.base import LogReader

logger = logging.getLogger(__name__)

_PAGE = 200


async def wake_waiting(
    store: LogReader,
    ledger: Ledger,
    *,
    workspace: int,
    load: Callable[[int], Awaitable[LiveRun]],
    append: Callable[[LiveRun, AwaitClosed], Awaitable[None]],
    by: str = "",
) -> None:
    """`by` is who raised it, as far as the limits do not say so themselves."""
    after = (0, "")
    while found := await store.awaits(
        AwaitFilter(workspace=workspace, kinds=("budget",), after=after, limit=_PAGE, max_bytes=0)
    ):
        for one in found:
            after = (one.run, one.id)
            try:
                run = await load(one.run)
            except (NotFound, Conflict) as error:
                logger.warning("a run that waits for its budget is left alone: %s", error.message)
                continue
            refused, account = run.state.budget.refused, run.work.account
            if refused is None or account is None or not ledger.is_raised(refused, account.rules):
                continue
            who = ledger.setter(refused) or by or "runtime"
            head = AwaitClosed(run.state.turn, OF_RUN, one.id, "approved", who)
            if accepts(run.state, head):
                await append(run, head)
