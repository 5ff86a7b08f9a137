"""Removing what nobody needs any more. The logs of runs are trimmed by the store; this is the rest."""

from __future__ import annotations

from weftline.store.records import deliveries
from weftline.workspace.context import Workspaces

_BATCH = 1000
"""Rows in one transaction, so that runs under way do not wait for long."""


async def forget_deliveries(at: Workspaces, *, before: int) -> int:
    """Removes the deliveries that were created before that time and are settled; returns how many."""
    removed = 0
    while count := await at.records.write(deliveries.forget_settled(before, limit=_BATCH)):
        removed += count
    return removed
