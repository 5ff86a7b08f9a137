"""Ctrl-C while a run is followed: the first shows the options, the second leaves."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self


class Interrupts:
    """Handles Ctrl-C: `first` is called at the first one; `leaving` is set at the second."""

    def __init__(self, first: Callable[[], None]) -> None:
        self.leaving = asyncio.Event()
        self._first = first
        self._count = 0

    def _interrupted(self) -> None:
        self._count += 1
        if self._count == 1:
            self._first()
        else:
            self.leaving.set()

    def __enter__(self) -> Self:
        # Not possible outside the main thread, where nobody presses keys either.
        with suppress(RuntimeError, ValueError, NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with suppress(RuntimeError, ValueError, NotImplementedError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
