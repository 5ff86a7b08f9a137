"""Removing what nobody needs any more. The logs of runs are trimmed by the store; this is the rest."""

from __future__ import annotations

from weftline.store.records import deliveries
from weftline.workspace.context import Workspaces

_BATCH = 1000
"""Rows in one transaction, so that runs under way do not wait for long."""


async def forget_deliveries(at: Workspaces, *, before: int, workspace: int | None = None) -> int:
    """Removes some settled deliveries from before that time, of one workspace or of all; returns how many."""
    return await at.records.write(deliveries.forget_settled(before, workspace=workspace, limit=_BATCH))
