"""A batch of many calls costs as much per call as a small one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from weftline.kernel.decide import MAX_CONSULTED, decide
from weftline.kernel.entries import CallOpened, Limits, TimerFired
from weftline.kernel.state import New, RunTool, encode_state

from .world import AT0, SECOND, Ask, World, call, text

SMALL, LARGE = 128, 384
ALLOWED = 1.12
"""Three times the calls may cost up to 3.36 times as much. A call costs less near the ends of a batch, where fewer run
at once, and the ends weigh less in a large batch: the gated ones get 8 % dearer from 128 to 384, and 2 % to 960."""
FEW = Limits(max_concurrent_calls=16)
"""A step costs in proportion to what runs at once, so the small batch too must be much larger than that."""
MANY = 768


def asks(name: str, count: int) -> list[Ask]:
    return [Ask(name, {"n": n}) for n in range(count)]


def one_after_another(count: int) -> World:
    world = World()
    world.reply(call(*asks("look", count)))
    while world.tool_calls:
        world.finish(world.tool_calls[0])
    return world


def side_by_side(count: int) -> World:
    world = World(FEW)
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
    world = World(FEW)
    world.reply(call(*asks("scan", count)))
    world.crash()
    world.cancel()
    return world


def gated(name: str) -> Callable[[int], World]:
    def play(count: int) -> World:
        world = World(FEW, gated=True)
        world.reply(call(*asks(name, count)))
        while world.consults or world.tool_calls:
            for consult in world.consults:
                world.consulted(consult)
            for command in world.tool_calls:
                world.finish(command)
        return world

    return play


def gates_that_take_their_time(count: int) -> World:
    world = World(FEW, gated=True)
    world.reply(call(*asks("scan", count)))
    while world.consults or world.tool_calls:
        if world.consults:
            world.consulted(world.consults[0])
        else:
            world.finish(world.tool_calls[0])
    return world


def approved(name: str) -> Callable[[int], World]:
    """One after another; what is approved begins at once."""

    def play(count: int) -> World:
        world = World()
        world.reply(call(*asks(name, count)))
        for await_id in world.awaits:
            world.say("approved", await_id)
            for tool_call in world.tool_calls:
                world.finish(tool_call)
        return world

    return play


def gated_and_approved(name: str) -> Callable[[int], World]:
    def play(count: int) -> World:
        world = World(FEW, gated=True)
        world.reply(call(*asks(name, count)))
        while world.consults:
            world.consulted(world.consults[0])
        for await_id in world.awaits:
            world.say("approved", await_id)
            for tool_call in world.tool_calls:
                world.finish(tool_call)
        return world

    return play


def approved_while_one_runs(count: int) -> World:
    world = World()
    world.reply(call("look", *asks("wire", count - 1)))
    for await_id in world.awaits:
        world.say("approved", await_id)
    while world.tool_calls:
        world.finish(world.tool_calls[0])
    return world


def claimed(count: int) -> World:
    world = World()
    world.reply(call(*asks("local_read", count)))
    for index in range(count):
        world.claim(index, f"t{index}")
        world.clock += SECOND // 1000
        world.claim(index, f"t{index}", renewed=True)
    for index in range(count):
        world.answer(index, token=f"t{index}")
    return world


def nested(name: str, *, at_once: bool = False) -> Callable[[int], World]:
    def play(count: int) -> World:
        world = World(FEW)
        world.reply(call("code"))
        (host,) = world.hosts
        count = count * 15 // 16  # no more than 1,000
        for _ in range(1 if at_once else count):
            for ask in asks(name, count if at_once else 1):
                world.ask_further(host, ask)
            while others := [one for one in world.tool_calls if one != host]:
                world.finish(others[0])
            for await_id in world.awaits:
                world.say("approved", await_id)
                for one in [one for one in world.tool_calls if one != host]:
                    world.finish(one)
        world.finish(host)
        return world

    return play


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


PLAYS: dict[str, Callable[[int], World]] = {
    "one after another": one_after_another,
    "side by side": side_by_side,
    "with clients": with_clients,
    "mixed": mixed,
    "all late": all_late,
    "all blocked": all_blocked,
    "skipped": skipped,
    "cancelled": cancelled,
    "claimed": claimed,
    "gated, one after another": gated("look"),
    "gated, side by side": gated("scan"),
    "gates that take their time": gates_that_take_their_time,
    "approved, one after another": approved("wire"),
    "approved, side by side": approved("wipe"),
    "approved, while one runs": approved_while_one_runs,
    "gated and approved, one after another": gated_and_approved("wire"),
    "gated and approved, side by side": gated_and_approved("wipe"),
    "nested, one after another": nested("look"),
    "nested, side by side": nested("scan", at_once=True),
    "nested, in a row": nested("look", at_once=True),
    "nested and approved": nested("wipe", at_once=True),
}


@pytest.mark.parametrize("name", PLAYS)
def test_three_times_the_calls_cost_three_times_as_much(name: str) -> None:
    play = PLAYS[name]
    small, large = lines_of(play, SMALL), lines_of(play, LARGE)
    assert small > SMALL, "nothing was counted"
    assert large <= small * LARGE / SMALL * ALLOWED


def test_gates_are_not_asked_about_thousand_calls_at_once() -> None:
    world = World(gated=True)
    world.reply(call(*asks("scan", MANY)))
    assert [one.index for one in world.consults] == [*range(MAX_CONSULTED)]
    world.consulted(world.consults[3], "blocked")
    assert [one.index for one in world.consults] == [0, 1, 2, *range(4, MAX_CONSULTED + 1)]


def test_gates_see_as_many_calls_as_may_run() -> None:
    world = World(Limits(max_concurrent_calls=200), gated=True)
    world.reply(call(*asks("scan", 256)))
    assert len(world.consults) == 200


def test_no_more_concurrent_calls_run_at_once_than_run_allows() -> None:
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


def test_run_with_many_open_client_calls_has_small_state() -> None:
    """K18"""
    world = World()
    world.reply(call(*asks("local_read", MANY)))
    assert len(encode_state(world.state)) <= 4096 + 200 * MANY


def test_when_one_call_has_expired_run_waits_for_next_deadline() -> None:
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


def test_deadline_that_was_kept_wakes_run_for_nothing_but_next() -> None:
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
