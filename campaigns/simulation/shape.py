"""The shape of every log, checked without the kernel's own code."""

from __future__ import annotations

from collections.abc import Sequence

from campaigns.simulation.disk import Entry
from campaigns.simulation.tools import SUBAGENTS
from campaigns.simulation.trace import Violation
from weftline.kernel.entries import (
    AttemptFailed,
    AttemptStarted,
    AwaitClosed,
    CallAsked,
    CallClosed,
    CallOpened,
    CallStarted,
    CancelRequested,
    ChildEnded,
    RunAdopted,
    RunCreated,
    RunEnded,
    RunPaused,
    RunResumed,
    TurnCompleted,
)
from weftline.messages import Usage


class Shape:
    """Reads one log from its first entry on."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._turn = 0
        self._attempt = 0
        self._attempt_open = False
        self._calls: dict[tuple[int, int], str] = {}
        self._starts: dict[tuple[int, int], int] = {}
        self._once: set[tuple[int, int]] = set()
        self._lifted: set[tuple[int, int]] = set()
        """Calls in doubt that did not happen, according to a person."""
        self._epoch = 0
        self._cancelled = False
        self._paused = False
        self._usage = Usage()
        self._active_us = 0
        self._ended = False

    def read(self, entry: Entry) -> None:
        head = entry.head
        self._rule("K6", not self._ended, entry)
        match head:
            case RunCreated():
                self._rule("K6", entry.seq == 1, entry)
            case RunAdopted():
                self._rule("K14", head.epoch > self._epoch, entry)
                self._epoch = head.epoch
            case AttemptStarted():
                self._rule("K13", not self._attempt_open, entry)
                self._rule("K13", (head.turn, head.attempt) == (self._turn, self._attempt + 1), entry)
                self._rule("K7", all(status == "closed" for status in self._calls.values()), entry)
                self._may_start(entry)
                self._attempt, self._attempt_open = head.attempt, True
            case AttemptFailed() | TurnCompleted():
                self._rule("K13", self._attempt_open, entry)
                self._rule("K13", (head.turn, head.attempt) == (self._turn, self._attempt), entry)
                self._attempt_open = False
                self._usage += head.usage
                self._active_us += head.active_us
                if isinstance(head, TurnCompleted):
                    self._turn, self._attempt = self._turn + 1, 0
                    self._calls = {(head.turn, index): "asked" for index in range(len(head.calls))}
                    self._once = {(head.turn, i) for i, call in enumerate(head.calls) if call.effect == "once"}
            case CallAsked():
                call = head.turn, head.index
                self._rule("N1", call not in self._calls, entry)
                self._rule("N1", self._calls.get((head.turn, head.parent)) == "started", entry)
                self._calls[call] = "asked"
                if head.call.effect == "once":
                    self._once.add(call)
            case CallOpened() | CallStarted() | CallClosed():
                self._call(entry, head)
            case ChildEnded():
                self._usage += head.usage
            case AwaitClosed():
                if head.outcome == "approved" and self._calls.get((head.turn, head.index)) == "started":
                    self._lifted.add((head.turn, head.index))
            case CancelRequested():
                self._rule("K9", not self._cancelled, entry)
                self._cancelled = True
            case RunPaused():
                self._rule("K10", not self._paused, entry)
                self._paused = True
            case RunResumed():
                self._rule("K10", self._paused, entry)
                self._paused = False
            case RunEnded():
                self._end(entry, head)
            case _:
                pass

    def _call(self, entry: Entry, head: CallOpened | CallStarted | CallClosed) -> None:
        call = (head.turn, head.index)
        status = self._calls.get(call)
        match head:
            case CallOpened():
                self._rule("K7", status == "asked", entry)
                self._rule("K9", head.blocked or not self._cancelled, entry)
                self._calls[call] = "opened"
            case CallStarted():
                self._rule("K8", status in ("opened", "started"), entry)
                self._rule("K14", head.attempt == self._starts.get(call, 0) + 1, entry)
                self._rule("K14", status == "opened" or call not in self._once or call in self._lifted, entry)
                self._lifted.discard(call)
                self._may_start(entry)
                self._starts[call] = head.attempt
                self._calls[call] = "started"
            case CallClosed():
                self._rule("K8", status in ("opened", "started"), entry)
                began = head.client is not None or status == "started"
                began = began or (head.how == "failed" and head.name in SUBAGENTS)  # no run could be created for it
                self._rule("K8", began or head.how not in ("returned", "failed", "in_doubt"), entry)
                self._calls[call] = "closed"
                self._active_us += head.active_us

    def _end(self, entry: Entry, head: RunEnded) -> None:
        self._ended = True
        if head.code == "worker_error":
            return  # given up without reading its content
        self._rule("K7", all(status == "closed" for status in self._calls.values()), entry)
        self._rule("K13", not self._attempt_open, entry)
        self._rule("K9", self._cancelled == (head.status == "cancelled"), entry)
        self._rule("K24", (head.usage, head.active_us) == (self._usage, self._active_us), entry)

    def _may_start(self, entry: Entry) -> None:
        self._rule("K9", not self._cancelled, entry)
        self._rule("K10", not self._paused, entry)

    def _rule(self, rule: str, holds: bool, entry: Entry) -> None:
        if not holds:
            raise Violation(rule, f"run {self._run}: seq {entry.seq} is {entry.head}")


def check_shape(entries: Sequence[Entry], run: int) -> None:
    shape = Shape(run)
    for entry in entries:
        shape.read(entry)
