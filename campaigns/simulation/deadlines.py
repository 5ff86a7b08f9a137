"""D1: a deadline is acted upon within a second, whatever else the run is doing.

Exceptions are times when the server was down, stalled or had a faulty or slow disk, and the grace period after a start
in which clients and people may still answer earlier questions. When a run is given the time, all its expired deadlines
are acted upon at once. So while an expired question has its grace period, those that expire after it wait with it,
until it is answered or the grace period is over, and no longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from campaigns.simulation.disk import FAST_S, Entry
from campaigns.simulation.evidence import Evidence, RunLog
from campaigns.simulation.policies import Stopwatch
from campaigns.simulation.trace import require
from weftline.kernel.control import CallUnclaimed, CancelRequested
from weftline.kernel.entries import AwaitClosed, AwaitOpened, CallClosed, CallOpened, FinalForced, TimerFired
from weftline.kernel.policy import GRACE_US, CapReached
from weftline.runtime.fleet.timers import CLIENT_GRACE_US

LATE_S = 1.0
_GRACE_S = CLIENT_GRACE_US / 1_000_000
_NEVER_S = 1e12


class _Question(Struct):
    """A question with a deadline to a client or a person, in virtual seconds."""

    id: str
    asked_s: float
    deadline_s: float
    closed_s: float = _NEVER_S


def check_deadlines(evidence: Evidence, log: RunLog) -> None:
    if evidence.troubles.clock_was_set or evidence.disk.faults.slowest_s > FAST_S:
        return  # times in the log then differ from the history's, or reading what is due takes too long
    if log.order.tag in {tag for _, tag in evidence.troubles.losses}:
        return  # after one of its own writes has failed it is loaded again, some time later
    questions = _questions(evidence, log)
    # A suspect's deadline is acted upon in time too, though it is not driven before its trial.
    rung_s = [when_s(evidence, entry) for entry in log.entries if isinstance(entry.head, TimerFired)]
    for one in questions:
        overdue_s = _overdue_s(evidence, one, questions)
        acted_s = min([one.closed_s, *[at_s for at_s in rung_s if at_s >= one.deadline_s]])
        require("D1", acted_s <= overdue_s, f"run {log.key}: {one.id} should have been over by {overdue_s:.3f} s")


def _questions(evidence: Evidence, log: RunLog) -> list[_Question]:
    asked: dict[str, _Question] = {}
    for entry in log.entries:
        head, now_s = entry.head, when_s(evidence, entry)
        match head:
            case (
                CallOpened(timeout_us=int() as timeout_us, blocked=False) | AwaitOpened(timeout_us=int() as timeout_us)
            ):
                asked[head.id] = _Question(head.id, now_s, now_s + timeout_us / 1_000_000)
            case CallClosed() | AwaitClosed() if head.id in asked:
                asked[head.id].closed_s = min(asked[head.id].closed_s, now_s)
            case CancelRequested():  # it waits for its children, whatever its questions do
                for one in asked.values():
                    one.closed_s = min(one.closed_s, now_s)
            case CallUnclaimed(fallback=str(tool)) if tool:  # it has a deadline of its own
                asked[head.id].closed_s = now_s
            case _:
                pass
    return list(asked.values())


def check_time_budgets(evidence: Evidence, log: RunLog) -> None:
    """A time budget is acted upon within a second after it is used up, whatever the run's commands do."""
    policy = log.order.policy
    if policy is None or policy.time_budget_us is None or evidence.troubles.clock_was_set:
        return
    if evidence.disk.faults.slowest_s > FAST_S:
        return
    stopwatch, limit_us = Stopwatch(), policy.time_budget_us
    for entry, following in pairwise(log.entries):
        stopwatch.read(entry)
        timed_out = isinstance(entry.head, CapReached) and entry.head.reason == "time_budget"
        if timed_out or isinstance(entry.head, FinalForced):  # the final turn has a grace period, whatever forced it
            limit_us = policy.time_budget_us + (
                GRACE_US if policy.finalizer_grace_us is None else policy.finalizer_grace_us
            )
        left_us = limit_us - stopwatch.us
        if not stopwatch.is_running or left_us <= 0:
            continue
        since_s, acted_s = when_s(evidence, entry), when_s(evidence, following)
        due_s = since_s + left_us / 1_000_000
        by_s = due_s + LATE_S
        if acted_s > by_s and is_quiet(evidence, since_s, by_s):
            require("D2", False, f"run {log.key}: its time was up at {due_s:.3f} s, and {acted_s:.3f} s came")


def is_quiet(evidence: Evidence, since_s: float, until_s: float) -> bool:
    """Whether one process was running all the time without trouble, and none had died before it, since after a crash
    some runs are not driven at once.
    """
    if any(up.crashed and up.since_s <= until_s for up in evidence.times.values()):
        return False
    windows = (*evidence.troubles.stalls, *evidence.troubles.sick)
    there = any(up.since_s <= since_s and until_s < up.until_s for up in evidence.times.values())
    return there and not any(window.touches(since_s, until_s) for window in windows)


def when_s(evidence: Evidence, entry: Entry) -> float:
    return entry.at / 1_000_000 - evidence.epoch_s


def _overdue_s(evidence: Evidence, one: _Question, questions: Sequence[_Question]) -> float:
    """The time by which it must have been acted upon."""
    for life in evidence.times.values():
        older = [
            other
            for other in questions
            if other.asked_s < life.since_s < other.closed_s and other.deadline_s <= one.deadline_s
        ]
        grace_ends_s = min(life.since_s + _GRACE_S, max([other.closed_s for other in older], default=0.0))
        by_s = max(one.deadline_s, grace_ends_s, life.since_s) + LATE_S
        if by_s >= life.until_s:
            continue
        stalled = any(stall.touches(life.since_s, by_s) for stall in evidence.troubles.stalls)
        sick = any(window.touches(life.since_s, by_s) for window in evidence.troubles.sick)
        if not stalled and not sick:
            return by_s
    return _NEVER_S
