"""Chooses the writes of a flush when more is waiting than fits: workspaces take turns, batch after batch."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.runtime.live import LiveRun

MAX_BATCH_BYTES = 4 * 1024 * 1024


class FairBatches:
    """Remembers who was served last, because one large write fills a batch and one workspace may have many of them."""

    def __init__(self) -> None:
        self._batches = 0
        self._served: dict[int, int] = {}
        """The last batch that each workspace was part of; kept only while more is waiting than fits."""

    def divide(self, waiting: list[LiveRun]) -> tuple[Sequence[LiveRun], list[LiveRun]]:
        """Divides runs into those that are written now and those that stay queued. At least one is written, however
        large it is.
        """
        if sum([run.log.outbox.size for run in waiting]) <= MAX_BATCH_BYTES:
            if self._served:
                self._served = {}
            return waiting, []
        queues: dict[int, list[LiveRun]] = {}
        for run in waiting:
            queues.setdefault(run.workspace, []).append(run)
        self._batches += 1
        order = sorted(queues, key=lambda workspace: self._served.get(workspace, 0))
        taken: list[LiveRun] = []
        size = 0
        while order and size <= MAX_BATCH_BYTES:
            for workspace in list(order):
                run = queues[workspace].pop(0)
                if not queues[workspace]:
                    order.remove(workspace)
                taken.append(run)
                self._served[workspace] = self._batches
                size += run.log.outbox.size
                if size > MAX_BATCH_BYTES:
                    break
        return taken, [run for queue in queues.values() for run in queue]
