"""A3 and A4: questions of tools, of failed calls and about calls in doubt are asked once, and the answers count.

A3: a tool that asks a person something does not run again: the answer is its result, however the run ends. What the
first failed call of a turn lacks is asked once every call of the turn has its result, if the policy requires it, and
before the model is called again; without such a policy, the run continues without asking.
A4: in a run that asks about calls in doubt, no interrupted call is closed as in doubt unless a person has denied it,
nobody answered in time, or the run came to its end; in other runs, nobody is asked. A person's answer about such a call
is its result.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, field
from msgspec.json import decode

from campaigns.simulation.disk import Entry
from campaigns.simulation.evidence import Evidence, RunLog
from campaigns.simulation.trace import require
from weftline.kernel import bodies
from weftline.kernel.entries import (
    AttemptFailed,
    AttemptStarted,
    AwaitClosed,
    AwaitOpened,
    CallClosed,
    CallOpened,
    CallStarted,
    CancelRequested,
    FinalForced,
    RunAdopted,
    RunEnded,
    TurnCompleted,
)
from weftline.kernel.policy import CapReached
from weftline.messages import joined_text

_UNANSWERED = ("denied", "expired", "withdrawn")


class _Turn(Struct):
    """What is known about the calls of a turn, by index."""

    calls: int = 0
    closed: int = 0
    started: set[int] = field(default_factory=set[int])
    asked_back: dict[int, str] = field(default_factory=dict[int, str])
    """The await ids of questions from tools."""
    lost: set[int] = field(default_factory=set[int])
    """Calls that a crash interrupted."""
    doubted: dict[int, str] = field(default_factory=dict[int, str])
    answers: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """The answer to each await: the outcome, and the value."""
    lacking: int | None = None
    """The first call that lacks something."""
    clarified: bool = False


class _Reader:
    def __init__(self, log: RunLog) -> None:
        order = log.order
        self._who = f"run {log.key}"
        self._clarifies = order.policy is not None and order.policy.on_missing_fields == "await_clarification"
        self._asks = order.in_doubt == "ask"
        self._ending = log.end is None or log.end.code == "worker_error"
        """No questions are asked any more."""
        self._given_up = self._ending
        """The run ends without considering its answers."""
        self._closing = _closing_seq(log.entries)
        self._turn = _Turn()

    def read(self, entry: Entry) -> None:
        turn, head = self._turn, entry.head
        match head:
            case TurnCompleted():
                self._turn = _Turn(len(head.calls))
            case CallStarted():
                asked = turn.asked_back.get(head.index)
                require("A3", asked is None, f"{self._who}: {asked} was asked by a call that begins again")
                turn.started.add(head.index)
                turn.lost.discard(head.index)
                turn.doubted.pop(head.index, None)
            case RunAdopted():
                turn.lost |= turn.started - turn.asked_back.keys()
            case AwaitOpened(kind="question") if head.index in turn.started:
                turn.asked_back[head.index] = head.id
            case AwaitOpened(kind="clarification"):
                fits = self._clarifies and turn.closed == turn.calls and head.index == turn.lacking
                require("A3", fits and not turn.clarified, f"{self._who}: {head.id} asks for what nothing lacks")
                turn.clarified = True
            case AwaitOpened(kind="doubt"):
                require("A4", self._asks, f"{self._who}: a person is asked about a doubt that is to be reported")
                turn.doubted[head.index] = head.id
            case AwaitClosed():
                answer = bodies.decode_answer(entry.body) if entry.body else bodies.AnswerBody()
                value = "" if answer.value is UNSET else decode(answer.value)
                turn.answers[head.id] = head.outcome, str(value)
            case CallClosed():
                self._closed(entry, head)
            case CapReached() | CancelRequested() | FinalForced():
                self._ending = True
            case AttemptStarted():
                lacks = turn.lacking is not None and not turn.clarified and head.attempt == 1
                forgotten = self._clarifies and lacks and not self._ending
                require("A3", not forgotten, f"{self._who}: nobody was asked what call {turn.lacking} lacks")
            case RunEnded():
                self._ending = True
            case _:
                pass

    def _closed(self, entry: Entry, head: CallClosed) -> None:
        turn = self._turn
        if not head.parent:
            turn.closed += 1
            if head.hint == "missing_fields" and (turn.lacking is None or head.index < turn.lacking):
                turn.lacking = head.index
        if (asked := turn.asked_back.get(head.index)) is not None:
            outcome, value = turn.answers.get(asked, ("", ""))
            text = joined_text(bodies.decode_closed(entry.body).parts)
            answered = outcome == "answered" and (head.how, text) == ("returned", value)
            fits = answered or (outcome in _UNANSWERED and head.how != "returned") or self._given_up
            require("A3", fits, f"{self._who}: {asked} was {outcome} {value!r}, and is {head.how} {text!r}")
        if (asked := turn.doubted.get(head.index)) is not None and turn.answers.get(asked, ("",))[0] == "answered":
            known = head.how == "returned" or self._given_up
            require("A4", known, f"{self._who}: a person said what became of {head.id}, and it is {head.how}")
        if head.how == "in_doubt" and head.index in turn.lost and self._asks and not self._ending:
            outcome, _ = turn.answers.get(turn.doubted.get(head.index, ""), ("", ""))
            asked = outcome in _UNANSWERED or entry.seq >= self._closing
            require("A4", asked, f"{self._who}: {head.id} is in doubt, and nobody was asked")


def _closing_seq(entries: Sequence[Entry]) -> int:
    """Where the append that ends the run begins: open questions are not waited for then."""
    closings = CallOpened | CallClosed | AwaitClosed | AttemptFailed | RunEnded
    return next((one.seq + 1 for one in reversed(entries) if not isinstance(one.head, closings)), 0)


def check_questions(evidence: Evidence, log: RunLog) -> None:
    """Raises `Violation`."""
    reader = _Reader(log)
    for entry in log.entries:
        reader.read(entry)
