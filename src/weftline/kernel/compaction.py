"""Compaction: when a summary is requested, and what follows from its outcome.

    measured ──▶ too large ──▶ started ──▶ compacted     requests have the summary from here on
                                  │
                                  └──────▶ failed        the run goes on as it is

Each request is measured before its turn. If it is too large, or has too many turns, it is compacted; whatever the
outcome, the next try waits until the conversation has grown by a quarter of the limit. If the model itself rejects a
request as too long, it is measured again, fewer turns are kept, and compaction is tried once in that turn. A summary
never ends a run: without one, the run continues as it would without these rules.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from weftline.kernel.context import (
    Cause,
    CompactionFailed,
    CompactionStarted,
    ContextCompacted,
    ContextMeasured,
    ContextRestored,
)
from weftline.kernel.state import MAX_COST_NUSD, Compact, Compaction, Decision, New, State, Totals
from weftline.messages import Usage

OVERFLOW = "context_window"
"""The error class of a model call whose request was too long."""


# Decisions


def under_way(s: State) -> Decision:
    """Decides what to do while a summary is being written."""
    if s.compaction.lost:
        return Decision((New(settled(s, "abandoned")),))
    return Decision(start=(Compact(s.compaction.number),))


def settled(s: State, reason: Literal["abandoned", "cancelled"]) -> CompactionFailed:
    """Closes a summary whose outcome will never be reported, with what it may have cost."""
    usage = Usage(input=s.compaction.estimate)
    return CompactionFailed(s.compaction.number, reason, usage=usage, estimated=True)


def before_request(s: State) -> Decision | None:
    """Decides what comes before a turn's first request; None if it can be sent as it is."""
    rule, c = s.limits.compaction, s.compaction
    if rule is None or c.undone or (rule.at_tokens is None and rule.at_turns is None):
        return None
    if s.attempt.number or s.step == "answered":
        return None  # already measured, or the provider is in the middle of running its own tools
    if c.measured != s.turn:
        return Decision((New(ContextMeasured(s.turn)),))
    if c.spare > 0 and is_too_large(s, tokens=c.tokens, turns=c.turns):
        return _begin(s, "size")
    return None


def is_too_large(s: State, *, tokens: int, turns: int) -> bool:
    """Returns True if a request of this size must be compacted before it is sent."""
    rule, c = s.limits.compaction, s.compaction
    if rule is None:
        return False
    if rule.at_tokens is not None and tokens > max(rule.at_tokens, c.not_below):
        return True
    return rule.at_turns is not None and turns >= max(rule.at_turns, c.turns_not_below)


def after_overflow(s: State) -> Decision | None:
    """Decides what follows when the model has rejected a request as too long; None if nothing can be done."""
    c = s.compaction
    if s.limits.compaction is None or s.attempt.failure != OVERFLOW:
        return None
    if c.overflow != s.turn:
        return Decision((New(ContextMeasured(s.turn, OVERFLOW)),))
    if not c.again or c.failures > s.limits.max_retries:
        return None
    if s.control.paused:
        return Decision()
    if c.retry_at is not None and c.retry_at > s.now:
        return Decision(due_at=c.retry_at)
    return _begin(s, OVERFLOW)


def _begin(s: State, cause: Cause) -> Decision:
    return Decision((New(CompactionStarted(s.compaction.number + 1, s.turn, cause)),))


# Folds: they return None if the fact contradicts the state.


def measured(s: State, head: ContextMeasured, at: int) -> State:
    c = s.compaction
    if head.cause == OVERFLOW:
        again = head.spare > 0
        c = replace(c, overflow=head.turn, again=again, failures=0, retry_at=None, tokens=head.tokens)
    else:
        c = replace(c, measured=head.turn, tokens=head.tokens, spare=head.spare, turns=head.turns)
    return replace(s, version=s.version + 1, compaction=c)


def started(s: State, head: CompactionStarted) -> State | None:
    c = s.compaction
    if c.open or s.attempt.open or s.batch.unclosed or head.number != c.number + 1:
        return None
    c = replace(c, number=head.number, open=True, lost=False, cause=head.cause, estimate=head.estimate)
    totals = replace(s.totals, attempts=s.totals.attempts + 1)
    return replace(s, version=s.version + 1, compaction=c, totals=totals)


def failed(s: State, head: CompactionFailed, at: int) -> State | None:
    c = s.compaction
    if not _is_open(c, head.number):
        return None
    by_provider = head.reason in ("error", "useless")
    c = replace(c, open=False, lost=False)
    if by_provider and c.cause == OVERFLOW:
        c = replace(c, again=head.retryable, failures=c.failures + 1, retry_at=head.retry_at)
    elif by_provider:
        c = replace(c, not_below=c.tokens + _step(s), turns_not_below=c.turns + _turns_step(s))
    return replace(s, version=s.version + 1, compaction=c, totals=_spent(s.totals, head, by_provider))


def compacted(s: State, head: ContextCompacted, at: int) -> State | None:
    c = s.compaction
    if head.number and not _is_open(c, head.number):
        return None
    c = replace(c, in_force=True, not_below=(head.left or head.after) + _step(s), turns_not_below=0)
    if not head.number:
        return replace(s, version=s.version + 1, compaction=c)
    c = replace(c, open=False, lost=False, again=False, tokens=head.after, spare=0)
    attempt = s.attempt
    if attempt.failure == OVERFLOW:
        # The next request is a different one. The failure is kept as the cause of the next attempt.
        attempt = replace(attempt, failures=0, failure_final=False, retry_at=None)
    return replace(s, version=s.version + 1, compaction=c, attempt=attempt, totals=_spent(s.totals, head, True))


def restored(s: State, head: ContextRestored, at: int) -> State:
    """From here on, a summary is written only if the model rejects a request as too long."""
    return replace(s, version=s.version + 1, compaction=replace(s.compaction, in_force=False, undone=True))


def _is_open(c: Compaction, number: int) -> bool:
    return c.open and number == c.number


def _step(s: State) -> int:
    """Returns how much the conversation must grow before it is compacted again because of its size."""
    rule = s.limits.compaction
    return 0 if rule is None or rule.at_tokens is None else rule.at_tokens // 4


def _turns_step(s: State) -> int:
    rule = s.limits.compaction
    return 0 if rule is None or rule.at_turns is None else max(rule.at_turns // 4, 1)


def _spent(totals: Totals, head: CompactionFailed | ContextCompacted, by_provider: bool) -> Totals:
    return replace(
        totals,
        calls_made=totals.calls_made + by_provider,
        usage=totals.usage + head.usage,
        cost_nusd=min(totals.cost_nusd + (head.cost_nusd or 0), MAX_COST_NUSD),
        unpriced=totals.unpriced or head.cost_nusd is None,
        estimated=totals.estimated or head.estimated,
        active_us=totals.active_us + max(head.active_us, 0),
    )
