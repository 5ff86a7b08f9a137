"""Credentials that a provider renews for a model call: whoever makes the call hears of it."""

from __future__ import annotations

from contextvars import ContextVar


class Renewals:
    """Those of one model call."""

    def __init__(self) -> None:
        self._count = 0

    def add(self) -> None:
        self._count += 1

    def taken(self) -> bool:
        """Whether there were some since this was last asked."""
        count, self._count = self._count, 0
        return count > 0


_present: ContextVar[Renewals | None] = ContextVar("renewals of the model call", default=None)


def watch_renewals() -> Renewals:
    """Those of the model call that the present task makes next."""
    renewals = Renewals()
    _present.set(renewals)
    return renewals


def renewed() -> None:
    """A provider calls this when it has renewed its credentials for the call that it is making."""
    renewals = _present.get()
    if renewals is not None:
        renewals.add()
