"""Whoever waits for the current work, if they may go away before it is done.

Work that has begun is finished for a caller who is gone, so that it does not depend on how quickly somebody leaves.
Only a wait that may be long looks here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol


class Caller(Protocol):
    def then(self, call: Callable[[], object]) -> None:
        """Calls `call` when the caller goes away, or at once if it has."""
        ...


current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)
