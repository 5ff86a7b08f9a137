"""A batch of many calls costs as much per call as a small one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from weftline.kernel.decide import decide
from weftline.kernel.entries import CallOpened, Limits, TimerFired
from weftline.kernel.state import New, RunTool, encode_state

from .world import AT0, SECOND, Ask, World, call, text

SMALL, LARGE = 256, 1_024


def asks(name: str, count: int) -> list[Ask]:
    return [Ask(name, {"n": n}) for n in range(count)]


def one_after_another(count: int) -> World:
    world = World()
    world.reply(call(*asks("look", count)))
    while world.tool_calls:
        world.finish(world.tool_calls[0])
    return world


def side_by_side(count: int) -> World:
    world = World()
    world.reply(call(*asks("scan", count)))
    while world.tool_calls:
        world.finish(world.tool_calls[-1])
    return world


def with_clients(count: int) -> World:
    world = World()
    world.reply(call(*asks("local", count)))
    for index in reversed(range(count)):
        world.answer(index)
    return world


def mixed(count: int) -> World:
    world = World()
    world.reply(
        call(*[ask for pair in zip(asks("local", count // 2), asks("look", count // 2), strict=True) for ask in pair])
    )
    for index in range(0, count, 2):
        world.answer(index)
        world.finish(world.tool_calls[0])
    return world


def all_late(count: int) -> World:
    world = World(Limits(on_local_timeout="report"))
    world.reply(call(*asks("local", count)))
    world.wait_until(AT0 + 300 * SECOND)
    return world


def all_blocked(count: int) -> World:
    world = World(Limits(tool_budgets={"look": 0}))
    world.reply(call(*asks("look", count)))
    return world


def skipped(count: int) -> World:
    world = World()
    world.reply(call(*asks("look", count)))
    world.steer("m1")
    world.finish(world.tool_calls[0])
    return world


def cancelled(count: int) -> World:
    world = World()
    world.reply(call(*asks("scan", count)))
    world.crash()
    world.cancel()
    return world


def lines_of(play: Callable[[int], World], count: int) -> int:
    """How many lines of the kernel run: what a batch costs, without a clock."""
    lines = 0

    def enter(frame: FrameType, _event: str, _arg: Any) -> Any:
        return follow if "/weftline/kernel/" in frame.f_code.co_filename else None

    def follow(_frame: FrameType, _event: str, _arg: Any) -> Any:
        nonlocal lines
        lines += 1
        return follow

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        world = play(count)
    finally:
        sys.settrace(before)
    if not world.state.ended:
        assert world.model_call.turn == 1, "the batch is not at its end"
    return lines


@pytest.mark.parametrize(
    "play", [one_after_another, side_by_side, with_clients, mixed, all_late, all_blocked, skipped, cancelled]
)
def test_four_times_the_calls_cost_four_times_as_much(play: Callable[[int], World]) -> None:
    small, large = lines_of(play, SMALL), lines_of(play, LARGE)
    assert small > SMALL, "nothing was counted"
    assert large / small < LARGE / SMALL * 1.15


def test_no_more_concurrent_calls_run_at_once_than_the_run_allows() -> None:
    world = World(Limits(max_concurrent_calls=3))
    world.reply(call(*asks("scan", 5), Ask("local_read")))
    assert world.tool_calls == [RunTool(0, index, 1) for index in range(3)]
    world.finish(RunTool(0, 1, 1))
    assert world.tool_calls == [RunTool(0, index, 1) for index in (0, 2, 3)]
    world.pause()
    world.finish(RunTool(0, 0, 1))
    assert len(world.tool_calls) == 2
    world.resume()
    assert world.tool_calls == [RunTool(0, index, 1) for index in (2, 3, 4)]
    world.answer(5)
    world.play(text())
    assert world.end.status == "succeeded"


def test_after_a_crash_lost_calls_take_their_places_again() -> None:
    world = World(Limits(max_concurrent_calls=2))
    world.reply(call(*asks("scan", 3)))
    world.crash()
    assert world.tool_calls == [RunTool(0, 0, 2), RunTool(0, 1, 2)]
    world.finish(RunTool(0, 0, 2))
    assert world.tool_calls == [RunTool(0, 1, 2), RunTool(0, 2, 1)]


def test_a_run_with_many_open_client_calls_has_a_small_state() -> None:
    """K18"""
    world = World()
    world.reply(call(*asks("local_read", LARGE)))
    assert len(encode_state(world.state)) <= 4096 + 200 * LARGE


def test_when_one_call_has_expired_the_run_waits_for_the_next_deadline() -> None:
    world = World(Limits(on_local_timeout="report"))
    world.auto = False
    world.reply(call("local", "local_read"))
    deadline = world.clock + 300 * SECOND
    world.append(decide(world.state).append[0])
    world.clock += 60 * SECOND
    world.auto = True
    world.settle()
    world.wait_until(deadline)
    assert world.hows() == ["timeout"]
    assert decide(world.state).due_at == deadline + 60 * SECOND


def test_a_deadline_that_was_kept_wakes_the_run_for_nothing_but_the_next() -> None:
    """The earliest deadline may be that of a call that is answered: then the timer finds the true one."""
    world = World(Limits(on_local_timeout="report"))
    world.auto = False
    world.reply(call("local", "local_read"))
    first, second = [new.head for new in decide(world.state).append]
    assert isinstance(first, CallOpened) and isinstance(second, CallOpened)
    deadline = world.clock + 300 * SECOND
    world.append(New(first))
    world.clock += 60 * SECOND
    world.auto = True
    world.settle()
    assert world.heads(CallOpened) == [first, second]
    world.answer(0)
    assert decide(world.state).due_at == deadline
    world.clock = deadline
    assert world.offer(TimerFired(deadline))
    assert world.hows() == ["returned"]
    assert decide(world.state).due_at == world.state.questions.due_at == deadline + 60 * SECOND
    world.wait_until(deadline + 60 * SECOND)
    assert world.hows() == ["returned", "timeout"]
