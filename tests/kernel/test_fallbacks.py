"""Fallbacks, provider pauses and money: what follows when one model cannot answer, and what it all cost."""

from __future__ import annotations

from msgspec.structs import replace

from weftline.kernel.entries import AttemptFailed, AttemptStarted, Limits
from weftline.kernel.evolve import fold
from weftline.kernel.state import CallModel, State
from weftline.messages import Usage

from .world import Fault, Reply, World, text


def test_fallback_is_asked_once_earlier_models_have_no_retries_left() -> None:
    world = World(Limits(max_retries=1, fallbacks=2))
    world.play(Fault("server", retryable=True), Fault("overloaded", retryable=True))
    assert world.running == [CallModel(0, 3, choice=1)]
    world.play(Fault("auth"))
    assert world.running == [CallModel(0, 4, choice=2)]
    world.play(text())
    assert world.end.status == "succeeded"
    assert [entry.head.choice for entry in world.entries if isinstance(entry.head, AttemptStarted)] == [0, 0, 1, 2]


def test_a_fallback_has_retries_of_its_own() -> None:
    fault = Fault("server", retryable=True)
    world = World(Limits(max_retries=1, fallbacks=1)).play(fault, fault, fault)
    assert world.running == [CallModel(0, 4, choice=1)]
    world.play(fault)
    assert (world.end.code, world.end.attempts) == ("server", 4)


def test_when_every_model_fails_the_last_failure_gives_the_class() -> None:
    world = World(Limits(max_retries=0, fallbacks=1)).play(Fault("rate_limit", retryable=True), Fault("context_window"))
    assert (world.end.status, world.end.code, world.end.attempts) == ("failed", "context_window", 2)


def test_a_run_stays_with_the_model_that_answered() -> None:
    world = World(Limits(fallbacks=1)).play(Fault("auth"))
    world.reply(Reply("thinking", finish="pause_turn"))
    assert world.running == [CallModel(1, 1, choice=1)]


def test_provider_pausing_its_own_tools_is_limited_by_turns() -> None:
    world = World(Limits(max_tool_turns=1))
    world.reply(Reply("searching", finish="pause_turn"))
    assert world.running == [CallModel(1, 1)]
    world.reply(Reply("still searching", finish="pause_turn"))
    assert world.end.status == "succeeded"


def test_run_costs_its_priced_attempts_or_is_unknown() -> None:
    world = World().play(Fault("server", retryable=True))
    priced = [
        (at, replace(head, cost_nusd=7)) if isinstance(head, AttemptFailed) else (at, head) for at, head in world.facts
    ]
    state = fold(State(), priced)
    assert (state.totals.cost_nusd, state.totals.unpriced) == (7, False)
    world.reply(replace(text(), usage=Usage()))
    assert world.end.cost_nusd is None
    assert fold(State(), world.facts).totals.unpriced
