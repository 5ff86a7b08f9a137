"""`evolve`: folds one fact into the state.

It never raises on a decodable entry, in whatever order entries come, and never makes a decision again: whatever changed
the course of the run is a fact of its own. A fact that cannot be true marks the state as broken, and `decide` then
ends the run instead of every start failing on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from msgspec.structs import replace

from weftline.kernel import guards
from weftline.kernel.entries import (
    STRICTNESS,
    AttemptFailed,
    AttemptStarted,
    BudgetExceeded,
    CallClosed,
    CallOpened,
    CallStarted,
    CancelRequested,
    Effect,
    Entry,
    Fact,
    FinalForced,
    HistoryPinned,
    LoopDetected,
    MessageQueued,
    MessagesTaken,
    OutputRejected,
    RunAdopted,
    RunCreated,
    RunEnded,
    RunPaused,
    RunResumed,
    TimerFired,
    TurnCompleted,
)
from weftline.kernel.state import BudgetUse, Call, Doubt, Queued, State, Streak
from weftline.messages import Usage

_DOUBTS_KEPT = 16


def evolve(state: State, entry: Entry) -> State:
    """The state after `entry`. Entries at or below the last seq folded change nothing."""
    if entry.seq <= state.seq:
        return state
    changes = _changes(state, entry.head, entry.at)
    return replace(state, seq=entry.seq, version=state.version + 1, **changes)


def fold(state: State, entries: Iterable[Entry]) -> State:
    for entry in entries:
        state = evolve(state, entry)
    return state


def _changes(s: State, head: Fact, at: int) -> dict[str, Any]:
    if s.ended:
        return {"broken": s.broken or "a fact after the terminal entry"}
    match head:
        case RunCreated():
            if s.created:
                return {"broken": "created twice"}
            return {"created": True, "rules": head.rules, "limits": head.limits, "thread": head.thread}
        case HistoryPinned():
            return {"history": head.upto}
        case RunAdopted():
            return {
                "epoch": head.epoch,
                "attempt_lost": s.attempt_open,
                "calls": tuple(_lost(call, head.effects) for call in s.calls),
            }
        case AttemptStarted():
            if s.attempt_open or (head.turn, head.attempt) != (s.turn, s.attempt + 1):
                return {"broken": f"attempt {head.turn}.{head.attempt} began out of turn"}
            if any(call.status != "closed" for call in s.calls):
                return {"broken": f"attempt {head.turn}.{head.attempt} began over an open call"}
            return {
                "turn": head.turn,
                "attempt": head.attempt,
                "attempt_open": True,
                "attempt_lost": False,
                "attempt_estimate": head.estimate,
                "attempts": s.attempts + 1,
                "model": head.model,
                "retry_at": None,
                "step": "model",
                "calls": (),
                # Another model begins with its own retries.
                **({"choice": head.choice, "failures": 0, "failure_final": False} if head.choice != s.choice else {}),
            }
        case AttemptFailed():
            if not s.attempt_open or (head.turn, head.attempt) != (s.turn, s.attempt):
                return {"broken": "an attempt failed that was not open"}
            return _attempt_failed(s, head)
        case TurnCompleted():
            if not s.attempt_open or (head.turn, head.attempt) != (s.turn, s.attempt):
                return {"broken": "a turn completed that was not open"}
            return _turn_completed(s, head)
        case OutputRejected():
            return {"step": "model", "output_asked_again": True}
        case CallOpened() | CallStarted() | CallClosed():
            return _call(s, head, at)
        case LoopDetected():
            return {} if head.hard else {"streak": replace(s.streak, reported=True)}
        case BudgetExceeded():
            return {}
        case FinalForced():
            return {"final": s.final or head.reason}
        case MessageQueued():
            return {"queue": (*s.queue, Queued(head.id, head.mode))}
        case MessagesTaken():
            left = tuple(message for message in s.queue if message.id not in head.ids)
            return {"queue": left, "step": "model" if s.step == "answered" else s.step}
        case RunPaused():
            return {"paused": True, "status": "paused"}
        case RunResumed():
            return {"paused": False, "status": "running"}
        case CancelRequested():
            waiting = tuple(call.id for call in s.calls if call.client and call.status == "opened")
            return {"cancel": head.reason or "user", "pending_at_cancel": waiting}
        case TimerFired():
            return {"now": max(s.now, head.now)}
        case RunEnded():
            return {
                "step": "ended",
                "status": head.status,
                "attempt_open": False,
                "calls": (),
                "queue": (),
                "streak": Streak(),
                "usage": head.usage,
            }
        case _:
            assert_never(head)


def _attempt_failed(s: State, head: AttemptFailed) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "attempt_open": False,
        "attempt_lost": False,
        "usage": s.usage + head.usage,
        "active_us": s.active_us + max(head.active_us, 0),
        **_cost(s, head.usage, head.cost_nusd),
    }
    if head.reason == "error":
        changes |= {
            "failures": s.failures + 1,
            "calls_made": s.calls_made + 1,
            "failure": head.cls,
            "failure_final": not head.retryable,
            "retry_at": head.retry_at,
        }
    else:
        changes["failure"] = ""
    return changes


def _turn_completed(s: State, head: TurnCompleted) -> dict[str, Any]:
    calls = tuple(
        Call(
            asked.id,
            asked.name,
            asked.digest,
            verdict=asked.verdict,
            effect=asked.effect,
            client=asked.client,
            concurrent=asked.concurrent,
        )
        for asked in head.calls
    )
    return {
        "attempt_open": False,
        "attempt_lost": False,
        "attempt": 0,
        "turn": head.turn + 1,
        "failures": 0,
        "failure": "",
        "calls_made": s.calls_made + 1,
        "usage": s.usage + head.usage,
        **_cost(s, head.usage, head.cost_nusd),
        "active_us": s.active_us + max(head.active_us, 0),
        "finish": head.finish,
        "has_text": head.has_text,
        "output_invalid": head.output_invalid,
        "calls": calls,
        "step": "batch" if calls else "answered",
        "tool_turns": s.tool_turns + bool(calls),
        "streak": guards.after_turn(s.streak, head.signature, s.limits) if calls else Streak(),
    }


def _cost(s: State, usage: Usage, cost_nusd: int | None) -> dict[str, Any]:
    if cost_nusd is None:
        return {"unpriced": True} if usage.input or usage.output else {}
    return {"cost_nusd": s.cost_nusd + cost_nusd}


def _call(s: State, head: CallOpened | CallStarted | CallClosed, at: int) -> dict[str, Any]:
    if not 0 <= head.index < len(s.calls) or head.turn != s.turn - 1:
        return {"broken": f"a fact about call {head.turn}.{head.index}, which is not there"}
    call = s.calls[head.index]
    if call.status == "closed":
        return {"broken": f"call {head.turn}.{head.index} was closed twice"}
    changes: dict[str, Any] = {}
    match head:
        case CallOpened():
            if call.status != "asked":
                return {"broken": f"call {head.turn}.{head.index} was opened twice"}
            deadline = at + head.timeout_us if head.timeout_us is not None else None
            call = replace(call, status="opened", effect=head.effect, client=head.client, deadline_at=deadline)
            if not head.blocked:
                changes["budgets"] = _counted(s, call.name, used=1)
        case CallStarted():
            if call.status == "asked" or call.client or head.attempt != call.attempt + 1:
                return {"broken": f"call {head.turn}.{head.index} began out of turn"}
            call = replace(call, status="started", attempt=head.attempt, lost=False)
        case CallClosed():
            call = replace(call, status="closed", how=head.how, lost=False, result=head.digest)
            changes["active_us"] = s.active_us + max(head.active_us, 0)
            if head.how in ("unknown", "invalid"):
                changes["budgets"] = _counted(s, call.name, used=1)
            elif head.how == "skipped":
                changes["budgets"] = _counted(s, call.name, used=-1)
            elif head.how == "budget":
                changes["budgets"] = _counted(s, call.name, blocked=1)
            elif head.how == "in_doubt":
                changes["doubts"] = (*s.doubts, Doubt(call.name, call.digest))[-_DOUBTS_KEPT:]
    calls = (*s.calls[: head.index], call, *s.calls[head.index + 1 :])
    if all(each.status == "closed" for each in calls):
        changes["streak"] = guards.after_batch(s.streak, calls)
    return changes | {"calls": calls}


def _counted(s: State, tool: str, *, used: int = 0, blocked: int = 0) -> dict[str, BudgetUse]:
    if tool not in s.limits.tool_budgets:
        return s.budgets
    before = s.budgets.get(tool, BudgetUse())
    return s.budgets | {tool: BudgetUse(before.used + used, before.blocked + blocked)}


def _lost(call: Call, effects: dict[str, Effect]) -> Call:
    """A call begun by an earlier epoch; the stricter of the recorded and the present effect rules, a gone tool most."""
    if call.status != "started":
        return call
    present = effects.get(call.name, "once")
    stricter = present if STRICTNESS[present] > STRICTNESS[call.effect] else call.effect
    return replace(call, lost=True, effect=stricter)
