"""The append contract's checks: whether a fact from outside the kernel still rests on something.

A *decision* rests on the exact version it was made on, which the driver compares. Everything else is judged here: an
*outcome* on its command still being outstanding, an *answer* on its open call, a request on a run that is open.
First come wins; what is refused changes nothing.
"""

from __future__ import annotations

from weftline.kernel.entries import (
    AttemptFailed,
    CallClosed,
    CallStarted,
    CancelRequested,
    Fact,
    HistoryPinned,
    MessageQueued,
    RunAdopted,
    RunPaused,
    RunResumed,
    TimerFired,
    TurnCompleted,
)
from weftline.kernel.state import State

MAX_QUEUED = 256
"""Messages that may wait for one run at a time."""


def accepts(s: State, head: Fact, *, attempt: int = 0) -> bool:
    """Whether `head`, an outcome, an answer or a request, may be appended to a run in this state.

    `attempt` is the attempt of the call that an outcome belongs to; 0 for the answer of a client. The outcome of
    `Reconcile` is a `CallClosed`, or a `CallStarted` with the next attempt when the call will not happen by itself.
    """
    if s.ended:
        return False
    match head:
        case AttemptFailed() | TurnCompleted():
            return s.attempt_open and not s.attempt_lost and (head.turn, head.attempt) == (s.turn, s.attempt)
        case CallClosed():
            if s.cancel or head.turn != s.turn - 1 or not 0 <= head.index < len(s.calls):
                return False
            call = s.calls[head.index]
            if attempt:
                return call.status == "started" and call.attempt == attempt
            return call.status == "opened" and call.client is not None
        case CallStarted():
            # The tool made sure that what was begun before a crash will not happen: the one start from outside.
            if s.cancel or s.paused or head.turn != s.turn - 1 or not 0 <= head.index < len(s.calls):
                return False
            call = s.calls[head.index]
            lost = call.status == "started" and call.lost and call.effect == "reconcile"
            return lost and call.attempt == attempt and head.attempt == attempt + 1
        case CancelRequested():
            return not s.cancel
        case MessageQueued():
            return not s.cancel and len(s.queue) < MAX_QUEUED
        case RunPaused():
            return not s.cancel and not s.paused and s.limits.interrupts_allowed
        case RunResumed():
            return s.paused
        case TimerFired():
            return head.now > s.now
        case RunAdopted():
            return head.epoch > s.epoch
        case HistoryPinned():
            return s.history is None
        case _:
            return False


def open_call(s: State, tool_use_id: str) -> int | None:
    """The index of the client call that waits for an answer under this id."""
    for index, call in enumerate(s.calls):
        if call.id == tool_use_id and call.client and call.status == "opened":
            return index
    return None
