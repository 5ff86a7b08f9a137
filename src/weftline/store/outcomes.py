"""The outcomes of writes, and what webhooks are notified of: the same for every store."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from weftline.errors import Conflict, WeftlineError
from weftline.store.records.deliveries import Event
from weftline.store.records.webhooks import WAITING
from weftline.store.rows import Write, Written


class Moved(Exception):
    """A run row is not the one that a write is based on."""


class Malformed(ValueError):
    """A write that no store could apply."""


def check_children(write: Write) -> None:
    """Raises `Malformed` unless the children are what `Write.children` says."""
    for child in write.children:
        new = child.new
        if new is None or new.thread is not None or new.history:
            raise Malformed("a child is a new run without a thread")
        if child.awaits or child.answered or child.bookings or child.closes or child.children:
            raise Malformed("a child opens, books and creates nothing yet")
        if child.thread_end is not None or child.wakes is not None:
            raise Malformed("a child has not ended anything yet")


def moved_on() -> Written:
    """The run row has changed since the version that the write is based on."""
    return Written("conflict", error=Conflict("The run has moved on.", code="conflict"))


def already_there(what: object) -> Conflict:
    return Conflict(f"This already exists: {what}.", code="conflict")


def refused_by_thread(format: int | None, write: Write) -> Written | None:
    """Why a thread does not accept a run: it has ended (`format` is None), or newer code has written to it."""
    if format is None:
        return Written("failed", error=Conflict("This session has ended.", code="thread_ended"))
    if format > write.format:
        message = "A newer version of Weftline has continued this session."
        return Written("failed", error=Conflict(message, code="unsupported_run"))
    return None


def impossible(reason: object) -> Written:
    """No store could apply this write."""
    return Written("failed", error=WeftlineError(f"The write was not possible: {reason}.", code="internal_error"))


def events_of(write: Write) -> list[Event]:
    """The end of a run that ran here, not of an imported one, and the awaits that the write opens."""
    events: list[Event] = []
    if write.ended_at is not None and write.items and write.items[-1].kind == "run.ended" and not write.imported:
        events.append(Event(write.status, write.key, write.ended_at))
    opened = [new for new in write.awaits if new.id not in write.answered]
    return events + [Event(WAITING, write.key, new.opened_at, new.id) for new in opened]


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
