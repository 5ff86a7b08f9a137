"""Cancels runs, for routes, commands, MCP and A2A alike."""

from __future__ import annotations

from weftline.api.views import cancelled
from weftline.runtime.engine import Engine
from weftline.wire.run_responses import Cancelled


async def cancel_run(runs: Engine, key: int, *, by: str) -> Cancelled:
    """Ends the run at once; returns what was stopped, what had finished and what is in doubt."""
    return cancelled(await runs.cancel(key, requested_by=by))
