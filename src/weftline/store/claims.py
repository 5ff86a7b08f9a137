"""The epochs of one owner: every claim of a run is newer than all earlier ones, including those of earlier owners."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from weftline.store.rows import Write


class Claims:
    """The claims of runs that have not been released. None of this is durable, because the next owner's epochs are
    higher anyway.
    """

    def __init__(self, owner_epoch: int) -> None:
        self._before = self._last = owner_epoch << 32
        self._newest: dict[int, int] = {}
        """The latest claim of each run that has outstanding claims, even if it is not one of them."""
        self._outstanding: dict[int, list[int]] = {}
        """In order, of each run that was claimed again before it was released. Otherwise it is the latest claim."""

    def next_epoch(self) -> int:
        self._last += 1
        return self._last

    def earlier(self, epoch: int) -> bool:
        """Returns True if an epoch belongs to an earlier owner."""
        return epoch <= self._before

    def claim(self, run: int) -> int:
        epoch = self.next_epoch()
        if run in self._newest:
            self._outstanding.setdefault(run, [self._newest[run]]).append(epoch)
        self._newest[run] = epoch
        return epoch

    def release(self, run: int, epoch: int) -> None:
        """Ends a claim. Those before it stay fenced as long as they are outstanding."""
        outstanding = self._outstanding.get(run) or ([self._newest[run]] if run in self._newest else [])
        # The holder of a claim may have advanced to later epochs of its own.
        if place := bisect_right(outstanding, epoch):
            del outstanding[place - 1]
            if not outstanding:
                del self._newest[run]
                self._outstanding.pop(run, None)

    def any_stale(self, writes: Sequence[Write]) -> bool:
        return bool(self._newest) and any(map(self.stale, writes))

    def stale(self, write: Write) -> bool:
        """Returns True if its run has been claimed again since."""
        return write.epoch < self._newest.get(write.key, 0)
