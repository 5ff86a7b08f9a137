"""D1: a deadline is acted upon within a second, whatever else the run is doing.

Exceptions are times when the server was down, stalled or had a faulty or slow disk, and the grace period that clients
get after a start for calls offered before it.
"""

from __future__ import annotations

from itertools import pairwise

from weftline.kernel.entries import AwaitClosed, AwaitOpened, CallClosed, CallOpened, FinalForced, TimerFired
from weftline.kernel.lease import CallUnclaimed
from weftline.kernel.policy import GRACE_US, CapReached
from weftline.runtime.timers import CLIENT_GRACE_US
from weftline.testing.simulation.disk import FAST_S, Entry
from weftline.testing.simulation.evidence import Evidence, RunLog
from weftline.testing.simulation.policies import Stopwatch
from weftline.testing.simulation.trace import require

LATE_S = 1.0
_GRACE_S = CLIENT_GRACE_US / 1_000_000


def check_deadlines(evidence: Evidence, log: RunLog) -> None:
    if evidence.troubles.clock_was_set or evidence.disk.faults.slowest_s > FAST_S:
        return  # times in the log then differ from the history's, or reading what is due takes too long
    closed = {entry.head.id: _when_s(evidence, entry) for entry in log.entries if isinstance(entry.head, CallClosed)}
    for entry in log.entries:
        if isinstance(entry.head, CallUnclaimed) and entry.head.fallback:  # its tool has a time of its own
            closed[entry.head.id] = _when_s(evidence, entry)
    answered = {one.head.id: _when_s(evidence, one) for one in log.entries if isinstance(one.head, AwaitClosed)}
    rung = [entry for entry in log.entries if isinstance(entry.head, TimerFired)]
    for entry in log.entries:
        head = entry.head
        if isinstance(head, CallOpened) and head.timeout_us is not None and not head.blocked:
            opened_s = _when_s(evidence, entry)
            deadline_s = opened_s + head.timeout_us / 1_000_000
            # Code may ask for a call while another one, which a crash cut off, still has its grace: both wait for that.
            overdue_s = _overdue_s(evidence, 0.0 if head.parent else opened_s, deadline_s)
            # A suspect's deadline is acted upon in time too, though it is not driven before its trial.
            acted_s = [_when_s(evidence, one) for one in rung if _when_s(evidence, one) >= deadline_s]
            late = min([closed[head.id], *acted_s]) > overdue_s
            require("D1", not late, f"run {log.key}: {head.id} should have timed out by {overdue_s:.3f} s")
        if isinstance(head, AwaitOpened) and head.timeout_us is not None:
            asked_s = _when_s(evidence, entry)
            deadline_s = asked_s + head.timeout_us / 1_000_000
            overdue_s = _overdue_s(evidence, asked_s, deadline_s)
            acted_s = [_when_s(evidence, one) for one in rung if _when_s(evidence, one) >= deadline_s]
            late = min([answered[head.id], *acted_s]) > overdue_s
            require("D1", not late, f"run {log.key}: {head.id} should have expired by {overdue_s:.3f} s")


def check_time_budgets(evidence: Evidence, log: RunLog) -> None:
    """The time of a run is up within a second after it is, whatever its commands do."""
    policy = log.order.policy
    if policy is None or policy.time_budget_us is None or evidence.troubles.clock_was_set:
        return
    if evidence.disk.faults.slowest_s > FAST_S:
        return
    stopwatch, limit_us = Stopwatch(), policy.time_budget_us
    for entry, following in pairwise(log.entries):
        stopwatch.read(entry)
        if isinstance(entry.head, FinalForced | CapReached):  # the last turn has a grace, whatever made it the last one
            limit_us = policy.time_budget_us + (
                GRACE_US if policy.finalizer_grace_us is None else policy.finalizer_grace_us
            )
        left_us = limit_us - stopwatch.us
        if not stopwatch.is_running or left_us <= 0:
            continue
        since_s, acted_s = _when_s(evidence, entry), _when_s(evidence, following)
        due_s = since_s + left_us / 1_000_000
        by_s = due_s + LATE_S
        if acted_s > by_s and _is_quiet(evidence, since_s, by_s):
            require("D2", False, f"run {log.key}: its time was up at {due_s:.3f} s, and {acted_s:.3f} s came")


def _is_quiet(evidence: Evidence, since_s: float, until_s: float) -> bool:
    """Whether one process was there all the time and had no trouble, and none had died before it: after that some runs
    are not driven at once.
    """
    if any(up.crashed and up.since_s <= until_s for up in evidence.times.values()):
        return False
    windows = (*evidence.troubles.stalls, *evidence.troubles.sick)
    there = any(up.since_s <= since_s and until_s < up.until_s for up in evidence.times.values())
    return there and not any(window.touches(since_s, until_s) for window in windows)


def _when_s(evidence: Evidence, entry: Entry) -> float:
    return entry.at / 1_000_000 - evidence.epoch_s


def _overdue_s(evidence: Evidence, opened_s: float, deadline_s: float) -> float:
    """The time by which it must have been acted upon."""
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
