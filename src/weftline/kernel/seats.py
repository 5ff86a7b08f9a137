"""The log's vocabulary for who speaks in a run: its seats, and how the run moves from one to the next.

A seat is a side of an agent with its prompt. A run of two sides alternates between them; a run that may be handed over
has a seat for each agent that it can reach. A run without seats has one speaker, and none of this.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct


class _Head(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Like `entries.Head`."""


Ends: TypeAlias = Literal["", "side", "handoff", "session", "failure"]
"""What a call ends if it succeeds: the side's turn, the agent's (another takes over), or the run, as succeeded or as
failed. The later of two beats the earlier if they ran together.
"""
STRENGTH: dict[Ends, int] = {"": 0, "side": 1, "handoff": 2, "session": 3, "failure": 4}
Why: TypeAlias = Literal["start", "answered", "stop_tool", "max_steps", "no_answer", "forced", "handoff"]
ClosingReason: TypeAlias = Literal["max_steps", "no_answer"]

MOST_TEXTS = 8
"""After this many answers without calls in a row, a seat that does not stop with an answer is asked for its last."""


class SeatRule(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A seat as it was when the run was created. Stored in full, like `Limits`."""

    name: str
    """The agent and the side: `triage/a`."""
    side: Literal["a", "b"] = "a"
    first_model: int = 0
    """Which of the run's models is its own; those after it are its fallbacks."""
    fallbacks: int = 0
    stop_on_response: bool = True
    """Whether an answer without calls ends its turn."""
    max_steps: int | None = None
    """After this many model turns, one more follows in its side turn, without tools."""
    stop_tool: str = ""
    """What models call the tool that ends its turn."""


class SeatTaken(_Head, frozen=True, tag="seat.taken"):
    """From here on this seat speaks: its side turn begins. Body: `SpokenBody`, if a call ended the one before it.

    `name` and `side` are the rule's, so that the entry can be displayed without earlier ones.
    """

    seat: int
    why: Why
    name: str = ""
    side: Literal["a", "b"] = "a"
    call: str = ""
    """The call that ended the side turn before it, by its id."""


class SeatClosing(_Head, frozen=True, tag="seat.closing"):
    """The next answer is the last of its side turn, without tools. Body: `TextBody`, what the model reads about it."""

    turn: int
    reason: ClosingReason


class SeatAskedOn(_Head, frozen=True, tag="seat.asked_on"):
    """The seat has answered without a call, and goes on. Body: `TextBody`, what the model reads."""

    turn: int


class SeatForced(_Head, frozen=True, tag="seat.forced"):
    """Code wants this seat to take the next side turn. `by` names the code."""

    seat: int
    by: str = ""


class RunStopped(_Head, frozen=True, tag="run.stopped"):
    """Code wants the run to end after the calls of its turn. `by` names the code."""

    by: str = ""
