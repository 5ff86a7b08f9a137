"""The epochs of one owner: every claim of a run is newer than all earlier ones, including those of earlier owners."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.store.base import Write


class Claims:
    """The latest claim of each run, until it is released. None of this is durable, because the next owner's epochs are
    higher anyway.
    """

    def __init__(self, owner_epoch: int) -> None:
        self._before = self._last = owner_epoch << 32
        self._newest: dict[int, int] = {}

    def next_epoch(self) -> int:
        self._last += 1
        return self._last

    def earlier(self, epoch: int) -> bool:
        """Whether an epoch belongs to an earlier owner."""
        return epoch <= self._before

    def claim(self, run: int) -> int:
        epoch = self._newest[run] = self.next_epoch()
        return epoch

    def release(self, run: int, epoch: int) -> None:
        # The holder of a claim may have advanced to later epochs of its own.
        if self._newest.get(run, epoch + 1) <= epoch:
            del self._newest[run]

    def any_stale(self, writes: Sequence[Write]) -> bool:
        return bool(self._newest) and any(map(self.stale, writes))

    def stale(self, write: Write) -> bool:
        """Whether its run has been claimed again since."""
        return write.epoch < self._newest.get(write.key, 0)
