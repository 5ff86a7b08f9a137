"""K7 and K10: in which order a run announces, begins and answers its calls, and when it begins nothing."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from weftline.kernel.context import CompactionStarted
from weftline.kernel.control import CallClaimed, CallUnclaimed
from weftline.kernel.entries import (
    AskedCall,
    AttemptStarted,
    AwaitClosed,
    AwaitOpened,
    CallAsked,
    CallClosed,
    CallGated,
    CallOpened,
    CallStarted,
    How,
    Limits,
    RunCreated,
    RunEnded,
    RunPaused,
    RunResumed,
    TimerFired,
    TurnCompleted,
)
from weftline.kernel.policy import CapReached

from .world import Entry

_REFUSED_BY_POLICY = frozenset[How | None]({"excluded", "cap", "blocked"})


class _Turn(Struct):
    """The calls of one turn by index: those that the model asked for, then those that running calls asked for."""

    number: int = -1
    calls: dict[int, AskedCall] = field(default_factory=dict[int, AskedCall])
    parents: dict[int, int] = field(default_factory=dict[int, int])
    told: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    """What the log says about each: `opened`, then `closed`."""
    gated: set[int] = field(default_factory=set[int])
    """The gates have yet to decide on these."""
    held: set[int] = field(default_factory=set[int])
    """A person is asked about these, or has approved them and it is not their turn."""
    announced: bool = False
    """Whether any of them may begin."""


def every_call_is_answered_before_the_run_goes_on(log: Sequence[Entry]) -> None:
    """K7: each call is announced once and answered once before the model is asked again or the run ends. All that can
    be announced is announced together, in the order in which it was asked for.

    So a call passes an earlier one only if that one waits for somebody, the gates or a person: nothing else may keep a
    call back. A call that never begins is announced with its result, and may pass others for three reasons more: the
    policy is asked about the calls of a turn before any of them is announced, and takes out those that it has something
    against; when the time budget is used up, bookkeeping calls have a while longer than the others; and what code asked
    for is answered when that code has ended.
    """
    limits, hows = _limits(log), _hows(log)
    turn, out_of_time = _Turn(), False
    for entry in log:
        match entry.head:
            case TurnCompleted() as head:
                calls = dict(enumerate(head.calls))
                turn = _Turn(head.turn, calls, told={index: [] for index in calls})
                turn.gated = {index for index, call in calls.items() if call.gated}
            case CallAsked() as head:
                turn.calls[head.index], turn.parents[head.index], turn.told[head.index] = head.call, head.parent, []
                if head.call.gated:
                    turn.gated.add(head.index)
            case CallGated() as head:
                turn.gated.remove(head.index)
            case AwaitOpened() as head if not turn.told[head.index]:
                turn.held.add(head.index)
            case AwaitClosed() as head if not turn.told[head.index]:
                if head.outcome != "approved" or turn.calls[head.index].client is not None:
                    turn.held.remove(head.index)
            case CapReached(reason="time_budget"):
                out_of_time = True
            case CallOpened() as head:
                passed = _passed(turn, head.index)
                how = hows.get((head.turn, head.index)) if head.blocked else None
                assert not passed or _may_pass(turn, head.index, passed, how, limits, out_of_time), (head, passed)
                turn.gated.discard(head.index)
                turn.held.discard(head.index)
                turn.announced = turn.announced or not head.blocked
                turn.told[head.index].append("opened")
            case CallClosed() as head:
                turn.told[head.index].append("closed")
            case AttemptStarted() | RunEnded():
                assert all(told == ["opened", "closed"] for told in turn.told.values()), turn.told
            case _:
                pass


def _passed(turn: _Turn, index: int) -> list[int]:
    """The earlier calls that are not announced although nobody is asked about them."""
    waiting = turn.gated | turn.held
    return [other for other, told in turn.told.items() if other < index and not told and other not in waiting]


def _may_pass(
    turn: _Turn, index: int, passed: Sequence[int], how: How | None, limits: Limits, out_of_time: bool
) -> bool:
    if how == "not_run":
        parent = turn.parents.get(index)
        orphan = parent is not None and "closed" in turn.told[parent]
        return orphan or (out_of_time and all(turn.calls[other].bookkeeping for other in passed))
    own = index not in turn.parents
    return limits.policy is not None and how in _REFUSED_BY_POLICY and own and not turn.announced


def _hows(log: Sequence[Entry]) -> dict[tuple[int, int], How]:
    closed = [entry.head for entry in log if isinstance(entry.head, CallClosed)]
    return {(head.turn, head.index): head.how for head in closed}


def _limits(log: Sequence[Entry]) -> Limits:
    first = log[0].head
    assert isinstance(first, RunCreated)
    return first.limits


class _Clock(Struct):
    """What is to be over by when."""

    now: int = 0
    """The latest time that the run was told."""
    deadlines: dict[tuple[int, int] | str, int] = field(default_factory=dict[tuple[int, int] | str, int])
    leases: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """When each claim ends."""

    def is_over(self, question: tuple[int, int] | str) -> bool:
        deadline = self.deadlines.get(question)
        return deadline is not None and deadline <= self.now

    @property
    def overdue(self) -> list[tuple[int, int] | str]:
        return [question for question in self.deadlines if self.is_over(question)]


def nothing_starts_in_a_pause_or_past_a_deadline(log: Sequence[Entry]) -> None:
    """K10: nothing begins in a pause, nor while a deadline has passed that nothing has been done about: what follows
    from it may be the end of the run. That holds for child runs, too, whose making takes a while: one that comes too
    late is not made.

    A client's call times out when its own time is up; when its claim has run out, if the run says that this is the end
    of the call; and with the time budget of the run, in the append that says so. Only bookkeeping calls are left by
    then. An await expires when its time is up, and for no other reason.
    """
    paused = False
    cut = out_of_time = False
    clock = _Clock()
    bookkeeping: set[tuple[int, int]] = set()
    rule = _limits(log).leases
    for entry in log:
        if not isinstance(entry.head, CapReached | CallOpened | CallClosed | AwaitClosed):
            cut = False
        match entry.head:
            case RunPaused():
                assert not paused
                paused = True
            case RunResumed():
                assert paused
                paused = False
            case TimerFired() as head:
                clock.now = max(clock.now, head.now)
            case CapReached(reason="time_budget"):
                cut = out_of_time = True
            case TurnCompleted() as head:
                bookkeeping = {(head.turn, index) for index, call in enumerate(head.calls) if call.bookkeeping}
            case CallAsked() as head if head.call.bookkeeping:
                bookkeeping.add((head.turn, head.index))
            case CallOpened() as head:
                if head.timeout_us is not None:
                    clock.deadlines[head.turn, head.index] = entry.at + head.timeout_us
            case CallClaimed() as head:
                clock.leases[head.turn, head.index] = entry.at + head.lease_us
            case CallUnclaimed() as head:
                clock.leases.pop((head.turn, head.index))
                if head.fallback:
                    clock.deadlines.pop((head.turn, head.index), None)
            case CallClosed() as head:
                call = head.turn, head.index
                lease = clock.leases.pop(call, None)
                if head.client and head.how == "timeout":
                    gone = lease is not None and lease <= clock.now and rule is not None and rule.on_lost == "error"
                    assert clock.is_over(call) or gone or cut or (out_of_time and call in bookkeeping), head
                clock.deadlines.pop(call, None)
            case AwaitOpened() as head:
                if head.timeout_us is not None:
                    clock.deadlines[head.id] = entry.at + head.timeout_us
            case AwaitClosed() as head:
                assert head.outcome != "expired" or clock.is_over(head.id), head
                clock.deadlines.pop(head.id, None)
            case AttemptStarted() | CallStarted() | CompactionStarted():
                assert not paused, entry.head
                assert not clock.overdue, entry.head
            case _:
                pass
