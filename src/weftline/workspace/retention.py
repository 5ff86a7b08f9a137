"""Removes what is no longer needed besides the logs of runs, which the store trims."""

from __future__ import annotations

from weftline.store.records import deliveries
from weftline.workspace.context import Workspaces

_BATCH = 1000
"""Rows in one transaction, so that active runs do not wait long."""


async def forget_deliveries(at: Workspaces, *, before: int, workspace: int | None = None) -> int:
    """Removes some settled deliveries from before that time, of one workspace or of all; returns how many."""
    return await at.records.write(deliveries.forget_settled(before, workspace=workspace, limit=_BATCH))
