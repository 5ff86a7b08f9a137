"""Where the commands of a run send their output while they run, in the embedded engine."""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import Any

from msgspec import Struct

from weftline.runtime.live import GONE, LiveRun
from weftline.runtime.log import WINDOW_BYTES, Log
from weftline.runtime.services import Outcome


class RunSink(Struct, eq=False):
    """The embedded engine's side of a running command."""

    _log: Log
    _run: LiveRun
    _ask: Callable[[LiveRun, Outcome], bool]
    _attempt: int
    """How many model calls the run had begun when the command was decided on."""

    __repr__ = object.__repr__  # what the run knows belongs in no log and no traceback

    async def permit(self, *, all: bool = False) -> None:
        """Returns when a model may be called: the outcome of the previous attempt is durable, and the store accepts
        writes.

        So at most one request per run can be unknown to the log after a crash.
        """
        log, of_run = self._log, self._run.log
        if log.refusal is not None:
            await log.wait_writable()
        if of_run.durable < of_run.outcome_seq:
            await log.durable(self._run, upto=of_run.outcome_seq)
        if all:
            await log.durable(self._run)

    def durable(self) -> CoroutineType[Any, Any, None]:
        return self._log.durable(self._run)

    def emit(self, kind: str, lines: bytes, count: int = 1) -> None:
        self._log.observe(self._run, kind, lines, count)

    def wanted(self) -> bool:
        state = self._run.log.state
        asking = state.attempt.open or state.compaction.open
        return asking and state.totals.attempts == self._attempt and self._run.residency is not GONE

    def take(self, outcome: Outcome) -> bool:
        return self._ask(self._run, outcome)

    def full(self) -> bool:
        return self._run.log.outbox.size > WINDOW_BYTES
