"""Detects from the heads of entries when a run waits for somebody outside and for nothing else.

The questions to people and the client-side calls that one turn has led to form one barrier. The other calls of the turn
run in the meantime. Once all of them have results, the run is paused; when the last answer arrives, it resumes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from weftline.kernel.control import OF_RUN
from weftline.kernel.entries import (
    AwaitClosed,
    AwaitOpened,
    CallAsked,
    CallClosed,
    CallOpened,
    CallUnclaimed,
    Fact,
    TurnCompleted,
)

_Entry: TypeAlias = tuple[str, int, int | str]

HEADS = (
    "turn.completed",
    "call.asked",
    "call.opened",
    "call.unclaimed",
    "call.closed",
    "await.opened",
    "await.closed",
)
"""The kinds of the entries that it is computed from."""


class Change(Struct, frozen=True):
    """The run pauses or resumes. `awaits` is what it waits for: the ids of awaits, and of client-side calls."""

    to: Literal["paused", "resumed"]
    awaits: tuple[str, ...] = ()


class Offer(Struct, frozen=True):
    """The open client-side calls of a turn, by index."""

    turn: int
    indexes: tuple[int, ...]


class Waiting:
    """Takes these entries in order. It may see an entry again, and then returns the same for it."""

    def __init__(self) -> None:
        self._changes: dict[_Entry, Change | None] = {}
        self._open: dict[int, int | None] = {}
        """The calls of the turn without a result: by index, the index of the call that asked for it."""
        self._asked: dict[str, int] = {}
        """The open awaits, each with the index of its call."""
        self._offered: dict[int, str] = {}
        """The offered client-side calls, with their ids."""
        self._offers: dict[_Entry, Offer] = {}
        self._turn = 0
        self._undecided: set[int] = set()
        """The client-side calls of the turn that are neither announced nor answered, and about which nobody is
        asked.
        """
        self._unannounced = False
        self._paused = False

    def see(self, head: Fact) -> None:
        """Takes an entry."""
        entry = _entry_of(head)
        if entry is None or entry in self._changes:
            return
        self._fold(head)
        self._changes[entry] = self._changed()
        if self._unannounced and not self._undecided:
            self._offers[entry] = Offer(self._turn, tuple(sorted(self._offered)))
            self._unannounced = False

    def change(self, head: Fact) -> Change | None:
        """Whether the run pauses or resumes with an entry that was seen."""
        entry = _entry_of(head)
        return None if entry is None else self._changes.get(entry)

    def offered(self, head: Fact) -> Offer | None:
        """What is offered to clients, if an entry that was seen is the last one that added to it."""
        entry = _entry_of(head)
        return None if entry is None else self._offers.get(entry)

    @property
    def offers_several(self) -> bool:
        """Whether any turn offered more than one call."""
        return any(len(offer.indexes) > 1 for offer in self._offers.values())

    def _fold(self, head: Fact) -> None:
        match head:
            case TurnCompleted():
                self._turn = head.turn
                self._open = dict.fromkeys(range(len(head.calls)))
                self._undecided = {index for index, call in enumerate(head.calls) if call.client is not None}
            case CallAsked():
                self._open[head.index] = head.parent
                if head.call.client is not None:
                    self._undecided.add(head.index)
            case AwaitOpened():
                self._asked[head.id] = head.index
                self._undecided.discard(head.index)
            case AwaitClosed():
                self._asked.pop(head.id, None)
            case CallOpened():
                self._undecided.discard(head.index)
                if head.client is not None and not head.blocked:
                    self._offered[head.index] = head.id
                    self._unannounced = True
            case CallUnclaimed() if head.fallback:
                self._offered.pop(head.index, None)
            case CallClosed():
                self._open.pop(head.index, None)
                self._offered.pop(head.index, None)
                self._unannounced = self._unannounced and bool(self._offered)
            case _:
                pass

    def _changed(self) -> Change | None:
        waits = bool(self._asked or self._offered)
        if self._paused and not waits:
            self._paused = False
            return Change("resumed")
        if not self._paused and waits and self._is_waiting():
            self._paused = True
            return Change("paused", (*self._asked, *self._offered.values()))
        return None

    def _is_waiting(self) -> bool:
        outside = {*self._asked.values(), *self._offered}
        above = {*self._open.values()}  # a call that waits for its nested calls
        return OF_RUN in outside or all(index in outside or index in above for index in self._open)


def _entry_of(head: Fact) -> _Entry | None:
    """Identifies an entry among all others of its run."""
    match head:
        case TurnCompleted():
            return "turn", head.turn, 0
        case CallAsked():
            return "asked", head.turn, head.index
        case CallOpened():
            return "opened", head.turn, head.index
        case CallUnclaimed():
            return f"unclaimed {head.index} {head.fallback}", head.turn, head.attempt
        case CallClosed():
            return "closed", head.turn, head.index
        case AwaitOpened():
            return "await", head.turn, head.id
        case AwaitClosed():
            return "answer", head.turn, head.id
        case _:
            return None
