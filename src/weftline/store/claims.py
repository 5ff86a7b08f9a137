"""The epochs of one owner: every claim of a run is newer than all before it, also than those of earlier owners."""

from __future__ import annotations

from weftline.store.base import Write


class Claims:
    """Remembers the newest claim of each run until it is released. Nothing of it is durable: the next owner's epochs
    are higher by themselves."""

    def __init__(self, owner_epoch: int) -> None:
        self._last = owner_epoch << 32
        self._newest: dict[int, int] = {}

    def next_epoch(self) -> int:
        self._last += 1
        return self._last

    def claim(self, run: int) -> int:
        epoch = self._newest[run] = self.next_epoch()
        return epoch

    def release(self, run: int, epoch: int) -> None:
        if self._newest.get(run) == epoch:
            del self._newest[run]

    def stale(self, write: Write) -> bool:
        """Whether its run was claimed again since."""
        return write.epoch < self._newest.get(write.key, 0)
