"""What waits to be written, and how much of it one commit takes.

A workspace alone has everything written at once, which costs the fewest commits. As soon as others write as well, each
has a share of every commit, and a large write is committed alone. So whoever has something small waits for one commit
of the others at the most, however much they write; and a small commit wakes few runs, so that the loop is soon free as
well.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator

from weftline.runtime.live import LiveRun
from weftline.work.turns import RoundRobin

MAX_BATCH_BYTES = 4 * 1024 * 1024
SHARE_BYTES = 8 * 1024
"""What a workspace may add to a commit while others write too: some steps of runs, a few milliseconds' work."""
ALONE_BYTES = 32 * 1024
"""What is larger is committed alone then."""
_ROW_BYTES = 256
"""What the row of a run adds to what is written of its log."""
_LATELY = 1000
"""For how many commits a workspace counts as one that writes. If they follow one another closely, some seconds."""


class WriteQueue:
    """The runs that have something to write, each at most once, in the order of workspaces' turns."""

    def __init__(self) -> None:
        self._queue: RoundRobin[LiveRun] = RoundRobin()
        self._batches = 0
        self._wrote: OrderedDict[int, int] = OrderedDict()
        """The latest batch of each workspace that wrote lately, oldest first."""

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[LiveRun]:
        return iter(self._queue)

    def put(self, run: LiveRun) -> None:
        self._queue.put(run, owner=run.workspace)

    def withdraw(self, run: LiveRun) -> None:
        """Removes a run, if it waits."""
        self._queue.withdraw(run, owner=run.workspace)

    def take_batch(self) -> list[LiveRun]:
        """Removes and returns what the next commit writes: at least one run, however large it is."""
        self._batches += 1
        share, alone = (SHARE_BYTES, ALONE_BYTES) if self._is_shared() else (MAX_BATCH_BYTES, MAX_BATCH_BYTES)
        batch = self.take_all() if sum(map(_size, self._queue)) <= share else self._take_some(share, alone)
        self._remember({run.workspace for run in batch})
        return batch

    def _take_some(self, share: int, alone: int) -> list[LiveRun]:
        """Removes and returns up to a share of each workspace, workspace by workspace."""
        batch: list[LiveRun] = []
        taken: Counter[Hashable] = Counter()
        total = 0

        def may(workspace: Hashable) -> bool:
            if not batch:
                return True
            size = _size(self._queue.first(workspace))
            return size <= alone and taken[workspace] < share and total + size <= MAX_BATCH_BYTES

        while len(batch) != 1 or total <= alone:  # what is larger stays alone
            try:
                run = self._queue.take(may)
            except KeyError:
                break
            batch.append(run)
            taken[run.workspace] += _size(run)
            total += _size(run)
        return batch

    def take_all(self) -> list[LiveRun]:
        """Removes and returns everything."""
        left, self._queue = [*self._queue], RoundRobin()
        return left

    def _is_shared(self) -> bool:
        """Whether more than one workspace writes."""
        while self._wrote and next(iter(self._wrote.values())) < self._batches - _LATELY:
            self._wrote.popitem(last=False)
        return len(self._wrote) > 1 or len({*self._wrote, *self._queue.owners}) > 1

    def _remember(self, workspaces: set[int]) -> None:
        for workspace in workspaces:
            self._wrote[workspace] = self._batches
            self._wrote.move_to_end(workspace)


def _size(run: LiveRun) -> int:
    return run.log.outbox.size + _ROW_BYTES
