"""D1: a deadline is acted upon within a second, whatever else the run is doing.

Excused are times in which the server was down, stalled or had a sick or slow disk, and the grace that clients get after
a start for calls that were offered before it.
"""

from __future__ import annotations

from weftline.kernel.entries import CallClosed, CallOpened
from weftline.runtime.residents import CLIENT_GRACE_US
from weftline.testing.simulation.disk import FAST_S
from weftline.testing.simulation.evidence import Evidence, RunLog
from weftline.testing.simulation.trace import require

LATE_S = 1.0
_GRACE_S = CLIENT_GRACE_US / 1_000_000


def check_deadlines(evidence: Evidence, log: RunLog) -> None:
    if evidence.troubles.clock_was_set or evidence.disk.faults.slowest_s > FAST_S:
        return  # times in the log are then not those of the history, or reading what is due takes too long
    if evidence.places < len(evidence.orders):
        return  # a run that waits for a place acts on its deadlines when it has one
    closed = {
        entry.head.id: entry.at / 1_000_000 - evidence.epoch_s
        for entry in log.entries
        if isinstance(entry.head, CallClosed)
    }
    for entry in log.entries:
        head = entry.head
        if isinstance(head, CallOpened) and head.timeout_us is not None and not head.blocked:
            opened_s = entry.at / 1_000_000 - evidence.epoch_s
            overdue_s = _overdue_s(evidence, opened_s, opened_s + head.timeout_us / 1_000_000)
            late = closed[head.id] > overdue_s
            require("D1", not late, f"run {log.key}: {head.id} should have timed out by {overdue_s:.3f} s")


def _overdue_s(evidence: Evidence, opened_s: float, deadline_s: float) -> float:
    """The time at which somebody must have acted."""
    for life in evidence.times.values():
        cut_off = opened_s < life.since_s
        by_s = max(deadline_s, life.since_s + _GRACE_S if cut_off else 0.0) + LATE_S
        if by_s >= life.until_s:
            continue
        stalled = any(stall.touches(life.since_s, by_s) for stall in evidence.troubles.stalls)
        sick = any(window.touches(life.since_s, by_s) for window in evidence.troubles.sick)
        if not stalled and not sick:
            return by_s
    return 1e12
