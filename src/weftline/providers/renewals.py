"""Notifies the caller of a model call when a provider renews its credentials for it."""

from __future__ import annotations

from contextvars import ContextVar


class Renewals:
    """The renewals of one model call."""

    def __init__(self) -> None:
        self._count = 0

    def add(self) -> None:
        self._count += 1

    def pop_any(self) -> bool:
        """Returns True if there were any since the last call."""
        count, self._count = self._count, 0
        return count > 0


_present: ContextVar[Renewals | None] = ContextVar("renewals of the model call", default=None)


def watch_renewals() -> Renewals:
    """Returns the renewals of the next model call of the current task."""
    renewals = Renewals()
    _present.set(renewals)
    return renewals


def renewed() -> None:
    """Called by a provider that has renewed its credentials for the current call."""
    renewals = _present.get()
    if renewals is not None:
        renewals.add()
