"""Cancels runs, for routes, commands, MCP and A2A alike."""

from __future__ import annotations

from typing import Protocol

from weftline.api.views import cancelled
from weftline.runtime.reads.calls import CancelReceipt
from weftline.wire.run_responses import Cancelled


class CancelledRuns(Protocol):
    """Where runs are cancelled: a running engine, or a store without one."""

    async def cancel(self, key: int, *, requested_by: str = "") -> CancelReceipt: ...


async def cancel_run(runs: CancelledRuns, key: int, *, by: str) -> Cancelled:
    """Ends the run at once; returns what was stopped, what had finished and what is in doubt."""
    return cancelled(await runs.cancel(key, requested_by=by))
