"""What a policy promises, checked from the log alone and without the kernel's own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from campaigns.simulation.trace import require
from weftline.kernel.context import CompactionFailed, CompactionStarted, ContextCompacted
from weftline.kernel.control import CallUnclaimed
from weftline.kernel.entries import (
    AskedCall,
    AttemptFailed,
    AttemptStarted,
    AwaitClosed,
    AwaitOpened,
    CallAsked,
    CallClosed,
    CallOpened,
    CallStarted,
    ChildEnded,
    ChildWaits,
    Fact,
    FinalForced,
    RunAdopted,
    RunCreated,
    RunEnded,
    RunPaused,
    RunResumed,
    TurnCompleted,
)
from weftline.kernel.policy import GRACE_US, CapReached, PolicyDecided, PolicyRule, RunUnattended


class Logged(Protocol):
    @property
    def at(self) -> int: ...
    @property
    def head(self) -> Fact: ...


def check_policy(log: Sequence[Logged]) -> None:
    """Raises `Violation` if a run went further than its policy allows, or was stopped without a reason."""
    first = log[0].head
    rule = first.limits.policy if isinstance(first, RunCreated) else None
    if rule is None:
        return
    stopwatch, caps, engine = Stopwatch(), _Caps(rule), _Engine(rule)
    for entry in log:
        stopwatch.read(entry)
        _in_time(rule, stopwatch, caps, entry.head)
        caps.read(entry.head)
        engine.read(entry.head)


class Stopwatch:
    """How long a run was active: from fact to fact, except while it waited for somebody."""

    def __init__(self) -> None:
        self.us = 0
        self._since: int | None = None
        self._asking = 0
        self._begun = False
        self._running: set[tuple[int, int]] = set()
        self._doubted: set[tuple[int, int]] = set()
        self._lost: set[tuple[int, int]] = set()
        self._children: set[tuple[int, int]] = set()
        self._idle: set[tuple[int, int]] = set()
        """Calls whose child run is waiting."""
        self._questions: set[str] = set()
        self._paused = False
        self._retry_at = 0
        self._max_calls = 0
        self._nested: dict[tuple[int, int], CallAsked] = {}
        """Nested calls without a result."""
        self._offered: set[tuple[int, int]] = set()

    def read(self, entry: Logged) -> None:
        head, at = entry.head, entry.at
        if self._since is not None:
            until = min(at, self._retry_at) if isinstance(head, RunUnattended) else at
            self.us += max(until - self._since, 0)
            at = max(at, self._since)
        self._note(head)
        running = self._running - self._doubted - self._idle - (self._lost if self._paused else set())
        running = {one for one in running if not self._waits_for_nested(one)}
        waits = not (self._asking or running) and (self._paused or bool(self._questions or self._idle))
        self._since = None if waits or not self._begun else at

    @property
    def is_running(self) -> bool:
        return self._since is not None

    def _waits_for_nested(self, host: tuple[int, int]) -> bool:
        """Whether all nested calls of a call wait for somebody outside."""
        own = [one for one, asked in self._nested.items() if (asked.turn, asked.parent) == host]
        begun = [one for one in self._nested if one in self._running]
        for one in own:
            if one in self._running:
                outside = one in self._doubted or one in self._children or (one in self._lost and self._paused)
            else:
                outside = self._paused or one in self._doubted or one in self._offered
                outside = outside or (self._nested[one].call.client is None and not self._may_begin(one, begun))
            if not outside:
                return False
        return bool(own)

    def _may_begin(self, one: tuple[int, int], begun: list[tuple[int, int]]) -> bool:
        """Whether a nested call is not blocked by those before it."""
        before = list(begun)
        for other, asked in sorted(self._nested.items()):
            if other in self._running or other in self._doubted or asked.call.client is not None:
                continue
            together = asked.call.concurrent and all(self._nested[key].call.concurrent for key in before)
            if before and not (together and len(before) < self._max_calls):
                return False
            if other == one:
                return True
            before.append(other)
        return False

    def _note(self, head: Fact) -> None:
        match head:
            case AttemptStarted() | CompactionStarted():
                self._begun, self._asking, self._retry_at = True, 1, 0
            case AttemptFailed():
                self._asking, self._retry_at = 0, head.retry_at or 0
            case TurnCompleted() | ContextCompacted() | CompactionFailed():
                self._asking = 0
            case FinalForced():
                self._retry_at = (
                    0  # the final request is a different one and is due at once: nothing is waited for any more
                )
            case RunCreated():
                self._max_calls = head.limits.max_concurrent_calls
            case CallAsked():
                self._nested[head.turn, head.index] = head
            case CallUnclaimed(fallback=str(tool)) if tool:
                place = head.turn, head.index
                self._questions.discard(head.id)
                self._offered.discard(place)
                if place in self._nested:
                    asked = self._nested[place]
                    self._nested[place] = replace(asked, call=replace(asked.call, client=None, concurrent=False))
            case ChildWaits():
                (self._idle.add if head.waits else self._idle.discard)((head.turn, head.index))
            case ChildEnded():
                self._children.discard((head.turn, head.index))
                self._idle.discard((head.turn, head.index))
            case CallOpened():
                if head.client is not None and not head.blocked:
                    self._questions.add(head.id)
                    self._offered.add((head.turn, head.index))
            case CallStarted():
                self._running.add((head.turn, head.index))
                self._lost.discard((head.turn, head.index))
                if head.child:
                    self._children.add((head.turn, head.index))
            case RunAdopted():
                self._lost |= self._running - self._children - self._doubted
            case AwaitOpened():
                self._questions.add(head.id)
                self._doubted.add((head.turn, head.index))
            case AwaitClosed():
                self._questions.discard(head.id)
                self._doubted.discard((head.turn, head.index))
            case CallClosed():
                self._questions.discard(head.id)
                self._running.discard((head.turn, head.index))
                self._nested.pop((head.turn, head.index), None)
            case RunPaused():
                self._paused = True
            case RunResumed():
                self._paused = False
            case _:
                pass


class _Caps:
    def __init__(self, rule: PolicyRule) -> None:
        self._rule = rule
        self._asked: dict[tuple[int, int], AskedCall] = {}
        self._open = 0
        self._opened: set[tuple[int, int]] = set()
        self._counted = 0
        self._max_calls = rule.max_tool_calls
        self._max_failures = rule.max_consecutive_failed_tool_calls
        self._failures = self._good = self._bad = 0
        self._admitted: dict[int, int] = {}
        self._ended_by = ""

    def is_bookkeeping(self, head: CallStarted) -> bool:
        return self._asked[head.turn, head.index].bookkeeping

    def read(self, head: Fact) -> None:
        match head:
            case TurnCompleted():
                self._asked = {(head.turn, index): call for index, call in enumerate(head.calls)}
                self._opened.clear()
                self._open, self._good, self._bad = len(head.calls), 0, 0
            case CallAsked():
                self._asked[head.turn, head.index] = replace(head.call, terminal=False)
                self._open += 1
            case PolicyDecided():
                if head.calls_left is not None:
                    self._max_calls = _less(self._max_calls, self._counted + head.calls_left)
                if head.failures_left is not None:
                    self._max_failures = _less(self._max_failures, self._failures + head.failures_left)
            case CallOpened() if not head.blocked:
                self._opened.add((head.turn, head.index))
                if not self._asked[head.turn, head.index].bookkeeping:
                    self._admitted[head.turn] = self._admitted.get(head.turn, 0) + 1
                    self._count(1)
            case CallClosed():
                self._closed(head)
            case AttemptStarted() if not head.final:
                failed = self._max_failures is not None and self._failures >= self._max_failures
                require("P5", not failed or head.attempt > 1, f"the model is asked after {self._failures} failures")
                require("P6", not self._ended_by, f"the model is asked after the terminal call {self._ended_by}")
            case RunEnded() if head.call:
                require("P6", head.call == self._ended_by, f"ended by {head.call}, which is {self._ended_by!r}")
            case _:
                pass

    def _count(self, calls: int) -> None:
        self._counted += calls
        require(
            "P1",
            self._max_calls is None or self._counted <= self._max_calls,
            f"{self._counted} of {self._max_calls} calls",
        )
        per_turn, most = self._rule.per_turn_max_tool_calls, max(self._admitted.values(), default=0)
        require("P1", per_turn is None or most <= per_turn, f"{most} calls in one turn, and {per_turn} are allowed")

    def _closed(self, head: CallClosed) -> None:
        call = self._asked[head.turn, head.index]
        self._open -= 1
        if head.how == "returned" and call.terminal:
            self._ended_by = self._ended_by or head.id
        if not call.bookkeeping:
            if head.how in ("unknown", "invalid", "answered", "denied") and (head.turn, head.index) not in self._opened:
                self._count(1)
            elif head.how == "skipped":
                self._counted -= 1
            good = head.how in ("returned", "answered") and not head.is_error
            bad = head.how in ("failed", "timeout", "in_doubt")
            self._good, self._bad = self._good + good, self._bad + bad
            if self._rule.failure_counting == "call" and (good or bad):
                self._failures = 0 if good else self._failures + 1
        if not self._open and self._rule.failure_counting == "turn" and (self._good or self._bad):
            self._failures = 0 if self._good else self._failures + 1


class _Engine:
    """Whatever the policy engine decides about a turn can only restrict it."""

    def __init__(self, rule: PolicyRule) -> None:
        self._on = rule.engine
        self._decision: PolicyDecided | None = None
        self._names: dict[int, str] = {}

    def read(self, head: Fact) -> None:
        match head:
            case PolicyDecided():
                before = self._decision
                require("P4", self._on and (before is None or before.turn < head.turn), f"asked again about {head}")
                self._decision = head
            case CallOpened() if self._on and not head.blocked:
                decision = self._decision
                require(
                    "P4",
                    decision is not None and decision.turn == head.turn,
                    f"{head.id} begins before the engine spoke",
                )
                assert decision is not None
                refused = decision.failed or decision.disable_tools
                refused = refused or (decision.allowed is not None and head.name not in decision.allowed)
                require("P4", not refused, f"{head.name} begins although the engine said {decision}")
            case _:
                pass


def _in_time(rule: PolicyRule, stopwatch: Stopwatch, caps: _Caps, head: Fact) -> None:
    budget = rule.time_budget_us
    if budget is None:
        return
    grace = GRACE_US if rule.finalizer_grace_us is None else rule.finalizer_grace_us
    us = stopwatch.us
    match head:
        case AttemptStarted():
            limit = budget + grace if head.final else budget
            require("P2", us < limit, f"turn {head.turn} begins after {us} of {limit} µs")
        case CompactionStarted():
            require("P2", us < budget, f"a summary begins after {us} of {budget} µs")
        case CallStarted():
            limit = budget + grace if caps.is_bookkeeping(head) else budget
            require("P2", us < limit, f"call {head.turn}.{head.index} begins after {us} of {limit} µs")
        case CapReached(reason="time_budget"):
            require("P3", budget <= head.used <= us, f"the time is up after {us} µs, by the log {head.used}")
        case FinalForced(reason="time_budget"):
            require("P3", us >= budget, f"brought to its end after {us} of {budget} µs")
        case _:
            pass


def _less(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
