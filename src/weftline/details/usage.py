"""What the model calls of a run have used so far, by model."""

from __future__ import annotations

from collections.abc import Iterable

from weftline.details import UsageRecorded
from weftline.details.projection import DetailProjection, RunFacts
from weftline.kernel.entries import Fact
from weftline.messages import Usage

KINDS = (
    "attempt.started",
    "attempt.failed",
    "turn.completed",
    "compaction.started",
    "compaction.failed",
    "context.compacted",
)
"""The entries that it is computed from; their bodies are not needed."""


def usage_by_model(heads: Iterable[Fact]) -> dict[str, Usage]:
    """The usage of the run's own calls, by model id, from the heads of these entries in order."""
    projection = DetailProjection(RunFacts(""))
    used: dict[str, Usage] = {}
    for head in heads:
        for detail in projection.of_fact(head, b"", seq=0, at=0):
            if isinstance(detail, UsageRecorded):
                used[detail.model] = used.get(detail.model, Usage()) + detail.usage
    return used
