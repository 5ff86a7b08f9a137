"""What an engine counts, for whoever watches the process: where facts are committed, so each counts once.

Counts begin with the process. Nothing here is by workspace, agent or model: their number has no bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from weftline.kernel.context import CompactionFailed, ContextCompacted
from weftline.kernel.entries import AttemptFailed, CallClosed, RunEnded, TurnCompleted
from weftline.messages import Usage
from weftline.store.rows import Write

WORK_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""Upper bounds for what models, tools and people take."""
DISK_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds for what a disk takes."""


class Histogram:
    """How often something took how long."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        """How many took up to each bound and more than the one before; the last, those that took more than any."""
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.total_s += seconds


class Metrics:
    """The counts of one engine. `committed` and `flushed` are called for every commit, so they are cheap."""

    def __init__(self) -> None:
        self.runs_created = 0
        self.runs_ended = {"succeeded": 0, "failed": 0, "cancelled": 0}
        self.run_s = Histogram(WORK_S)
        """From the first model call of a run to its end, waits included."""
        self.turns = 0
        self.model_calls = {"completed": 0, "error": 0, "abandoned": 0, "cancelled": 0}
        self.model_s = Histogram(WORK_S)
        self.tool_calls = {"ok": 0, "error": 0}
        self.tool_s = Histogram(WORK_S)
        """Of calls that were executed here."""
        self.usage = Usage()
        self.cost_nusd = 0
        self.flush_s = Histogram(DISK_S)
        self.written_bytes = 0
        self._of: Mapping[type[Any], Callable[[Any], None]] = {
            TurnCompleted: self._turn_completed,
            AttemptFailed: self._attempt_failed,
            CallClosed: self._call_closed,
            ContextCompacted: self._spent,
            CompactionFailed: self._spent,
            RunEnded: self._run_ended,
        }

    def committed(self, write: Write) -> None:
        """Counts the facts of a commit."""
        self.written_bytes += write.size
        if write.new is not None:
            self.runs_created += 1
        if write.children:
            self.runs_created += len(write.children)
        count_of = self._of.get
        for fact in write.facts:
            if (count := count_of(type(fact))) is not None:
                count(fact)
        if write.ended_at is not None and write.started_at is not None:
            self.run_s.add((write.ended_at - write.started_at) / 1_000_000)

    def flushed(self, seconds: float) -> None:
        """Counts a transaction of the store, from the time at which it got the writes to its answer."""
        self.flush_s.add(seconds)

    def _turn_completed(self, fact: TurnCompleted) -> None:
        self.turns += 1
        self.model_calls["completed"] += 1
        self.model_s.add(fact.active_us / 1_000_000)
        self._spent(fact)

    def _attempt_failed(self, fact: AttemptFailed) -> None:
        self.model_calls[fact.reason] += 1
        self._spent(fact)

    def _call_closed(self, fact: CallClosed) -> None:
        self.tool_calls["error" if fact.is_error else "ok"] += 1
        if fact.active_us:
            self.tool_s.add(fact.active_us / 1_000_000)

    def _run_ended(self, fact: RunEnded) -> None:
        self.runs_ended[fact.status] += 1

    def _spent(self, fact: TurnCompleted | AttemptFailed | ContextCompacted | CompactionFailed) -> None:
        self.usage += fact.usage
        self.cost_nusd += fact.cost_nusd or 0


class Measured(Struct, frozen=True):
    """An engine at this moment."""

    metrics: Metrics
    active: int
    """Runs that are being driven."""
    waiting: int
    """Runs that wait for a slot, or for earlier runs of their session."""
    streams: int
    """Event streams of workspaces that are open."""
    writable: bool
    """Whether the store accepts writes."""
