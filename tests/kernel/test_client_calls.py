"""Calls that a client carries out: offered together, answered in any order, with a deadline."""

from __future__ import annotations

import pytest

from weftline import prompts
from weftline.kernel.accept import accepts, open_question
from weftline.kernel.decide import decide
from weftline.kernel.entries import CallClosed, CallOpened, CallStarted, Limits, TimerFired
from weftline.kernel.state import CallModel, New, Question, RunTool

from .world import AT0, SECOND, World, call, text

MINUTE = 60 * SECOND


def test_client_calls_are_offered_at_once_before_anything_starts() -> None:
    world = World()
    world.reply(call("look", "local", "save", "local_read"))
    kinds = [type(entry.head) for entry in world.entries]
    assert [head.index for head in world.heads(CallOpened)] == [0, 1, 2, 3]
    assert kinds.index(CallStarted) > max(i for i, kind in enumerate(kinds) if kind is CallOpened)
    assert world.running == [RunTool(0, 0, 1)]


def test_the_next_turn_comes_after_the_last_answer() -> None:
    world = World().play(call("local", "local_read"))
    assert world.answer(1)
    assert world.running == []
    assert world.answer(0)
    assert world.running == [CallModel(1, 1)]


def test_the_first_answer_wins() -> None:
    world = World().play(call("local", "local_read"))
    assert world.answer(0, "first")
    assert not world.answer(0, "second")
    assert [head.digest for head in world.heads(CallClosed)] == ["first"]


def test_an_open_call_is_found_by_its_id() -> None:
    world = World().play(call("local", "look", "local_read"))
    assert open_question(world.state, "c0-2") == Question(2, AT0 + 5 * MINUTE)
    assert open_question(world.state, "c0-1") is None
    assert open_question(world.state, "c9-9") is None
    world.answer(2)
    assert open_question(world.state, "c0-2") is None


def test_client_cannot_answer_calls_of_the_server_or_another_turn() -> None:
    world = World()
    world.reply(call("look", "local", "save"))
    assert not world.answer(0)
    assert not world.answer(2)
    stale = CallClosed(3, 1, "c3-1", "local", "returned")
    assert not accepts(world.state, stale)
    assert not accepts(world.state, CallClosed(0, 9, "c0-9", "local", "returned"))


def test_past_its_deadline_a_client_call_ends_the_run() -> None:
    world = World().play(call("local", "local_read"))
    world.answer(1)
    due_at = AT0 + 5 * MINUTE
    assert decide(world.state).due_at == due_at
    world.wait_until(due_at)
    assert world.hows() == ["returned", "timeout"]
    assert world.texts(CallClosed)[1] == prompts.calls.LOCAL_TIMEOUT == "Timed out waiting for local tool result"
    assert (world.end.status, world.end.code) == ("failed", "local_timeout")


def test_run_that_ends_at_deadline_closes_its_other_calls() -> None:
    world = World()
    world.reply(call("local", "pay", "save"))
    world.wait_until(AT0 + 5 * MINUTE)
    assert world.hows() == ["timeout", "in_doubt", "not_run"]
    assert world.end.code == "local_timeout"


def test_overdue_client_call_can_be_reported_to_the_model() -> None:
    world = World(Limits(on_local_timeout="report", local_timeout_us=MINUTE)).play(call("local", "local_read"))
    world.wait_until(AT0 + MINUTE)
    assert world.hows() == ["timeout", "timeout"]
    assert not world.offer(CallClosed(0, 0, "c0-0", "local", "returned"))
    assert world.play(text()).end.status == "succeeded"


@pytest.mark.parametrize("paused", [False, True])
def test_a_timer_before_its_time_changes_nothing(paused: bool) -> None:
    world = World().play(call("local"))
    if paused:
        world.pause()
    before = decide(world.state)
    world.wait_until(AT0 + 5 * MINUTE - 1)
    assert decide(world.state) == before
    assert world.answer(0)


def test_a_clock_set_back_is_not_believed() -> None:
    world = World().play(call("local"))
    world.wait_until(AT0 + MINUTE)
    assert not world.wait_until(AT0)
    world.append(New(TimerFired(AT0)))
    assert world.state.now == AT0 + MINUTE


def test_an_answer_that_came_before_the_timer_counts() -> None:
    world = World().play(call("local"))
    world.clock = AT0 + 6 * MINUTE
    assert world.answer(0)
    world.wait_until(AT0 + 6 * MINUTE)
    assert world.play(text()).end.status == "succeeded"
