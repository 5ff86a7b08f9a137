"""A turn costs the same however many came before, and the state stays about a kilobyte."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from weftline.kernel.entries import Limits
from weftline.kernel.state import encode_state

from .world import Ask, World, call

TURNS = 1_000
SECRET = "a-very-private-word"


def long_run() -> World:
    return World(Limits(max_tool_turns=TURNS + 1, tool_budgets={"look": TURNS * 2, "pay": 5}))


def turn(world: World, n: int) -> None:
    ask = Ask("look", {"page": n, "note": SECRET * 50})
    world.play(call(ask, Ask("save", {"page": n})), tool=lambda name, _digest: f"{name} {n}")


def steps_of(world: World, n: int) -> int:
    """How many Python and C functions one turn calls: what it costs, without a clock."""
    count = 0

    def seen(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        turn(world, n)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.requirement("run.park.state")
def test_state_of_thousand_turns_is_small_and_holds_no_content() -> None:
    """K18"""
    world = long_run()
    sizes: list[int] = []
    for n in range(TURNS):
        turn(world, n)
        sizes.append(len(encode_state(world.state)))
    assert world.state.turn == TURNS
    assert max(sizes) < 4096
    assert max(sizes[10:]) - min(sizes[10:]) < 100
    assert SECRET.encode() not in encode_state(world.state)


def test_turn_costs_same_at_end_as_at_beginning() -> None:
    """K18: entries and work per turn do not grow."""
    world = long_run()
    for n in range(10):
        turn(world, n)
    entries, early = len(world.entries), steps_of(world, 10)
    per_turn = len(world.entries) - entries
    for n in range(11, TURNS - 1):
        turn(world, n)
    entries, late = len(world.entries), steps_of(world, TURNS - 1)
    assert len(world.entries) - entries == per_turn
    assert abs(late - early) <= 3
