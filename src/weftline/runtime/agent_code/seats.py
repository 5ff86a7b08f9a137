"""The seats of an agent's runs, as its present code defines them: who may speak, with what, and what ends their turns.

What a run was created with (`kernel.seats.SeatRule`) stays as it is; prompt, tools and what a tool ends come from here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from weftline.kernel.entries import AskedCall
from weftline.kernel.seats import Ends, SeatRule
from weftline.kernel.state import State


class Ending(Struct, frozen=True):
    """What a successful call of a tool ends."""

    ends: Ends
    seat: str = ""
    """For a hand-off: the name of the seat that takes over."""
    argument: str = ""
    """The argument that is what the side has said; if empty, the call's result is."""


class Seat(Struct, frozen=True, kw_only=True):
    """One seat. `tools` are those of its prompt; the run may have others, which belong to its other seats."""

    name: str
    side: Literal["a", "b"] = "a"
    model: str | None = None
    fallbacks: tuple[str, ...] = ()
    system: str = ""
    reasoning: int | None = None
    tools: frozenset[str] = frozenset()
    endings: Mapping[str, Ending] = {}
    """By tool."""
    stop_on_response: bool = True
    max_steps: int | None = None
    stop_tool: str = ""


def rules_of(seats: Collection[Seat]) -> tuple[SeatRule, ...]:
    """Returns the seats as a run keeps them."""
    rules: list[SeatRule] = []
    first = 0
    for one in seats:
        further = len(one.fallbacks)
        rules.append(SeatRule(one.name, one.side, first, further, one.stop_on_response, one.max_steps, one.stop_tool))
        first += 1 + further
    return tuple(rules)


class Seats:
    """The seats that the present code has, by name."""

    def __init__(self, seats: Collection[Seat]) -> None:
        self._by_name = {one.name: one for one in seats}
        self._all = frozenset([name for one in seats for name in one.tools])

    def of(self, state: State) -> Seat | None:
        """The seat that speaks; None if the code does not have it, and for a run without seats."""
        return None if state.seats is None else self._by_name.get(name_of(state))

    def has(self, seat: Seat, tool: str) -> bool:
        """Returns True if the seat may call the tool. What belongs to no seat belongs to all."""
        return tool in seat.tools or tool not in self._all

    def ended_by(self, asked: AskedCall, state: State) -> AskedCall:
        """The call with what it ends if it succeeds."""
        seat = self.of(state)
        ending = None if seat is None else seat.endings.get(asked.name)
        if ending is None:
            return asked
        names = [rule.name for rule in state.limits.seats]
        if ending.ends == "handoff" and ending.seat not in names:
            return asked
        to_seat = names.index(ending.seat) if ending.ends == "handoff" else 0
        return replace(asked, ends=ending.ends, to_seat=to_seat)


def name_of(state: State) -> str:
    """The name of the seat that speaks; empty in a run without seats."""
    return "" if state.seats is None else state.limits.seats[state.seats.index].name
