"""The append contract: whether a fact from outside the kernel may still be appended.

A *decision* is valid for the exact version it was made on: the driver folds it without awaiting, and the store compares
the version when it writes. Everything else is checked here: an *outcome* needs its command to be outstanding, an
*answer* needs its question to be open, and a request needs the run to be open. The first one wins; a rejected fact
changes nothing.
"""

from __future__ import annotations

from weftline.kernel import policies, questions, seating
from weftline.kernel.calls import asks_about_doubt
from weftline.kernel.context import CompactionFailed, ContextCompacted, ContextRestored
from weftline.kernel.control import ANSWERS, OF_RUN, CallClaimed, CallUnclaimed
from weftline.kernel.entries import (
    KNOWN_RULES,
    AttemptFailed,
    AwaitClosed,
    AwaitOpened,
    AwaitPassed,
    CallAsked,
    CallClosed,
    CallGated,
    CallStarted,
    CancelRequested,
    ChildEnded,
    ChildWaits,
    Fact,
    HistoryPinned,
    How,
    MessageQueued,
    MessagesEdited,
    OutputAccepted,
    OutputRejected,
    RunAdopted,
    RunPaused,
    RunResumed,
    TimerFired,
    TurnCompleted,
)
from weftline.kernel.policy import PolicyDecided
from weftline.kernel.questions import is_overdue
from weftline.kernel.seats import RunStopped, SeatForced, SeatTaken
from weftline.kernel.state import Call, Question, State

_ANSWERS = frozenset[How]({"returned", "failed"})
"""How a client may close a call; only the kernel closes one in any other way."""
MAX_QUEUED = 256
"""The most messages that may wait for one run at a time."""
MAX_NESTED = 1_000
"""The most calls of one turn that may be requested by other calls."""


def accepts(s: State, head: Fact, *, attempt: int = 0) -> bool:
    """Returns whether `head`, an outcome, an answer or a request, may be appended to a run in this state.

    `attempt` is the attempt of the call that an outcome belongs to; 0 for a client's answer. The outcome of `Reconcile`
    is a `CallClosed`, a `CallStarted` with the next attempt if the tool has made sure that the call will not take
    effect, or an `AwaitOpened` if a person has to decide. The outcome of `StartChild` is a `CallStarted`, or a
    `CallClosed` if the child run cannot be created.
    """
    if s.step == "ended" or s.rules not in KNOWN_RULES:
        return False
    # Compares types by identity, most frequent first: a failed match on a struct costs several times as much.
    if type(head) is CallClosed:
        return _closes(s, head, attempt)
    if type(head) is TurnCompleted or type(head) is AttemptFailed:
        current = s.attempt
        return current.open and not current.lost and head.turn == s.turn and head.attempt == current.number
    if type(head) is TimerFired:
        return head.now > s.now
    if type(head) is CancelRequested:
        return not s.control.cancel
    if type(head) is MessageQueued:
        return not s.control.cancel and len(s.control.queue) < MAX_QUEUED
    if type(head) is CallClaimed or type(head) is CallUnclaimed:
        return questions.accepts(s, head)
    if type(head) is CallStarted:
        return _starts_again(s, head, attempt)
    if type(head) is CallAsked:
        return _asks_further(s, head, attempt)
    if type(head) is ChildEnded:
        waiting = _call(s, head)
        return waiting is not None and waiting.waits_for_child
    if type(head) is ChildWaits:
        waiting = _call(s, head)
        return waiting is not None and waiting.waits_for_child and waiting.child_waits != head.waits
    if type(head) is CallGated:
        gated = _call(s, head)
        return gated is not None and gated.gated and not s.control.cancel
    if type(head) is PolicyDecided:
        return _judges(s, head)
    if type(head) is AwaitClosed:
        return _answers(s, head)
    if type(head) is AwaitPassed:
        asked = s.questions.open.get(head.id)
        return asked is not None and asked.kind != "call" and not asked.passed and not s.control.cancel
    if type(head) is AwaitOpened:
        return _leaves_to_people(s, head, attempt)
    if type(head) is OutputAccepted or type(head) is OutputRejected:
        return _awaits_check(s) and head.turn == s.turn - 1
    if type(head) is ContextCompacted or type(head) is CompactionFailed:
        return s.compaction.open and not s.compaction.lost and head.number == s.compaction.number
    if type(head) is ContextRestored:
        # Not while a summary is being written: it would be in force right after this.
        return s.compaction.in_force and not s.compaction.open and not s.control.cancel
    if type(head) is RunPaused:
        return not s.control.cancel and not s.control.paused and s.limits.interrupts_allowed
    if type(head) is RunResumed:
        return s.control.paused
    if type(head) is RunAdopted:
        return head.epoch > s.epoch
    if type(head) is SeatTaken or type(head) is SeatForced or type(head) is RunStopped:
        return seating.accepts(s, head)
    if type(head) is HistoryPinned:
        return s.history is None
    if type(head) is MessagesEdited:
        return s.history is not None and not s.control.cancel and not s.compaction.open
    return False  # all others are decisions


def open_question(s: State, id: str) -> Question | None:
    """The client-side call with this id, if it is still waiting for an answer."""
    question = s.questions.open.get(id)
    return question if question is not None and question.kind == "call" else None


def open_await(s: State, id: str) -> Question | None:
    """The await with this id, if people may still answer it."""
    question = s.questions.open.get(id)
    return question if question is not None and question.kind != "call" and not s.control.cancel else None


def _answers(s: State, head: AwaitClosed) -> bool:
    """Returns True if a person, or code acting for one, may close the await with this outcome."""
    question = open_await(s, head.id)
    if question is None or question.kind == "call" or head.outcome not in ANSWERS[question.kind]:
        return False
    if question.kind == "deploy" or question.kind == "budget":
        return head.index == OF_RUN and bool(head.by)
    call = _call(s, head)
    if call is None or call.awaiting != head.id or not head.by:
        return False
    # A call in doubt has already begun, so its arguments can no longer be edited.
    return bool(head.digest) and (question.kind == "confirm" or head.digest == call.digest)


def _leaves_to_people(s: State, head: AwaitOpened, attempt: int) -> bool:
    """Returns True if a tool may leave this to a person: as a question instead of a result, or because it was asked to
    reconcile a call, does not know, and the run asks people about calls in doubt.
    """
    call = _call(s, head)
    if call is None or s.control.cancel:
        return False
    if head.kind == "question":
        asks = call.stage == "started" and not call.lost and not call.asked_back and call.child is None
        return asks and call.attempt == attempt and s.limits.interrupts_allowed and head.id not in s.questions.open
    if head.kind != "doubt" or not asks_about_doubt(s, call):
        return False
    lost = call.stage == "started" and call.lost and call.effect == "reconcile" and call.attempt == attempt
    return lost and not call.awaiting and head.id not in s.questions.open


def _judges(s: State, head: PolicyDecided) -> bool:
    rule = s.limits.policy
    if rule is None or not rule.engine or s.control.cancel or s.step != "batch" or s.guards.final or s.policy.reached:
        return False
    return head.turn == s.turn - 1 and s.policy.decided < head.turn and s.batch.asked == len(s.batch.calls)


def _closes(s: State, head: CallClosed, attempt: int) -> bool:
    call = _call(s, head)
    if call is None or s.control.cancel or head.id != call.id or head.name != call.name:
        return False
    if attempt:
        if call.child == "":
            return call.stage == "opened" and attempt == 1  # its run could not be created
        return call.stage == "started" and call.attempt == attempt and not call.waits_for_child
    question = open_question(s, call.id)
    return question is not None and head.how in _ANSWERS and questions.answerable(question, head.lease)


def _starts_again(s: State, head: CallStarted, attempt: int) -> bool:
    """Returns True if a call may be started from outside the kernel.

    There are two cases: a tool has made sure that a call begun before a crash will not take effect, or the child run of
    a call has been created.
    """
    call = _call(s, head)
    if call is None or s.control.cancel or s.control.paused or policies.is_late(s) or is_overdue(s):
        return False
    if call.child is not None:
        lapsed = call.grant is not None and call.grant.expires_at <= s.now
        first = call.child == "" and call.stage == "opened" and bool(head.child) and head.attempt == 1
        return first and not lapsed and s.room_for_children > 0
    lost = call.stage == "started" and call.lost and call.effect == "reconcile"
    return lost and call.attempt == attempt and head.attempt == attempt + 1


def _asks_further(s: State, head: CallAsked, attempt: int) -> bool:
    """Returns True if a running call may ask for another one."""
    batch = s.batch
    if s.control.cancel or head.turn != s.turn - 1 or head.index != len(batch.calls) or batch.nested >= MAX_NESTED:
        return False
    if not 0 <= head.parent < len(batch.calls):
        return False
    parent = batch.calls[head.parent]
    return parent.host and parent.stage == "started" and not parent.lost and parent.attempt == attempt


def _awaits_check(s: State) -> bool:
    answer = s.answer
    if not s.limits.check_output or answer.invalid or answer.accepted or s.control.cancel:
        return False
    return s.step == "answered" or (s.step == "batch" and bool(s.guards.final))


def _call(
    s: State, head: CallClosed | CallStarted | CallGated | ChildEnded | ChildWaits | AwaitClosed | AwaitOpened
) -> Call | None:
    if head.turn != s.turn - 1 or not 0 <= head.index < len(s.batch.calls):
        return None
    return s.batch.calls[head.index]
