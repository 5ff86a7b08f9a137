"""The laws of the log are as strict as the design: each notices the mistakes that a looser one lets through.

The mistakes are planted in the kernel, and found in the histories that all other properties are tested with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from campaigns.simulation.leases import check_leases
from campaigns.simulation.policies import Stopwatch, check_policy
from campaigns.simulation.trace import Violation
from msgspec.structs import replace

from weftline.kernel import accept, questions
from weftline.kernel.control import LeaseRule
from weftline.kernel.decide import decide
from weftline.kernel.entries import AttemptStarted, CallAsked, CallOpened, Effect, FinalForced, Limits, TimerFired
from weftline.kernel.policy import CapReached, PolicyRule, RunUnattended
from weftline.kernel.state import Decision, New, StartChild, State

from . import laws
from . import world as worlds
from .histories import History, bring_to_its_end, lived
from .world import AT0, SECOND, Entry, Fault, World, call

SEEDS = 300
Law = Callable[[list[Any]], None]


def is_noticed(law: Law, first: int = 0, length: int = 400) -> bool:
    for seed in range(first, first + SEEDS):
        world = lived(History(seed, length))
        try:
            law(world.entries)
        except (AssertionError, Violation):
            return True
    return False


# K7: who may keep a call back


def test_calls_of_run_with_policy_are_announced_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(s: State) -> Decision:
        decision = decide(s)
        plain = all(isinstance(new.head, CallOpened) and not new.head.blocked for new in decision.append)
        backwards = s.limits.policy is not None and plain
        return replace(decision, append=decision.append[::-1]) if backwards else decision

    monkeypatch.setattr(worlds, "decide", planted)
    assert is_noticed(laws.every_call_is_answered_before_the_run_goes_on)


def test_ungated_call_does_not_wait_for_a_gated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the turn waits for a person; the others are announced in the wrong order."""

    def planted(s: State) -> Decision:
        decision = decide(s)
        opened = [new for new in decision.append if isinstance(new.head, CallOpened) and not new.head.blocked]
        others = [new for new in decision.append if new not in opened]
        waits = any(one.asks is not None or one.gated for one in s.batch.calls)
        return replace(decision, append=(*others, *opened[::-1])) if waits else decision

    monkeypatch.setattr(worlds, "decide", planted)
    assert is_noticed(laws.every_call_is_answered_before_the_run_goes_on)


def test_calls_of_code_are_announced_in_order() -> None:
    world = World()
    world.reply(call("code"))
    world.auto = False
    for name in ("look", "pay"):
        assert world.ask_further(world.hosts[0], name)
    world.auto = True
    world.settle()
    laws.hold(world.entries)
    opened = [place for place, entry in enumerate(world.entries) if isinstance(entry.head, CallOpened)]
    world.entries[opened[-2]], world.entries[opened[-1]] = world.entries[opened[-1]], world.entries[opened[-2]]
    assert [type(entry.head) for entry in world.entries].count(CallAsked) == 2
    with pytest.raises(AssertionError):
        laws.every_call_is_answered_before_the_run_goes_on(world.entries)


# K10: what begins past a deadline, and what times out


def overdue(*names: str, limits: Limits) -> World:
    """A run with an open child and a client that has not answered in time: nothing is done about that before the child
    has ended, since it may be the end of the run."""
    world = World(limits)
    world.reply(call("delegate", "local_read", *names))
    world.child_made(StartChild(0, 0))
    world.wait_until(AT0 + SECOND)
    return world


def test_child_delayed_by_a_deadline_is_made_later() -> None:
    world = overdue("delegate", limits=Limits(local_timeout_us=SECOND, on_local_timeout="report"))
    assert StartChild(0, 2) in world.running
    assert not world.child_made(StartChild(0, 2))
    assert world.running == []
    world.child_ends(0)
    assert world.hows() == ["timeout"]
    assert StartChild(0, 2) in world.running
    bring_to_its_end(world)
    laws.hold(world.entries)


def test_child_is_not_made_once_time_is_up() -> None:
    world = overdue("delegate", limits=Limits(local_timeout_us=SECOND))
    assert not world.child_made(StartChild(0, 2))
    world.child_ends(0)
    assert world.end.code == "local_timeout"
    laws.hold(world.entries)


@pytest.mark.parametrize("effect", ["read", "reconcile"])
def test_interrupted_call_does_not_restart_past_a_deadline(effect: Effect) -> None:
    world = overdue("scan", limits=Limits(local_timeout_us=SECOND, on_local_timeout="report"))
    world.crash({"scan": effect})
    assert (world.running, world.state.batch.running) == ([], (0, 2))
    world.child_ends(0)
    assert (world.reconciles if effect == "reconcile" else world.tool_calls) != []
    bring_to_its_end(world)
    laws.hold(world.entries)


def test_a_child_made_past_a_deadline_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(s: State) -> bool:
        return False

    monkeypatch.setattr(accept, "is_overdue", never)
    world = overdue("delegate", limits=Limits(local_timeout_us=SECOND))
    assert world.child_made(StartChild(0, 2))
    with pytest.raises(AssertionError):
        laws.nothing_starts_in_a_pause_or_past_a_deadline(world.entries)


def test_call_to_be_offered_again_outlives_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    real = questions.lost

    def planted(s: State) -> list[New]:
        return real(replace(s, limits=replace(s.limits, leases=LeaseRule("error"))))

    monkeypatch.setattr(questions, "lost", planted)
    world = World().play(call("local_read"))
    world.claim(0, "ann", lease_us=SECOND)
    world.wait_until(AT0 + SECOND)
    assert world.hows() == ["timeout"]
    for law in (laws.nothing_starts_in_a_pause_or_past_a_deadline, check_leases):
        with pytest.raises((AssertionError, Violation)):
            law(world.entries)


def test_open_client_calls_close_when_the_time_is_up() -> None:
    world = World(Limits(policy=PolicyRule(time_budget_us=SECOND)))
    world.reply(call("look", "local_read"))
    world.claim(1, "ann")
    world.wait_until(AT0 + 2 * SECOND)
    laws.hold(world.entries)
    assert world.hows() == ["timeout", "timeout"]
    reached = next(place for place, entry in enumerate(world.entries) if isinstance(entry.head, CapReached))
    later = Entry(world.clock, TimerFired(world.clock))
    with pytest.raises(AssertionError):
        laws.nothing_starts_in_a_pause_or_past_a_deadline(
            [*world.entries[: reached + 1], later, *world.entries[reached + 1 :]]
        )


# P2: what the last request waits for


def test_waiting_for_a_last_request_does_not_use_time() -> None:
    """It was waiting to try again when its time was up; the last request is another one, and waits for nothing."""
    world = World(Limits(policy=PolicyRule(time_budget_us=5 * SECOND, finalizer_grace_us=3 * SECOND)))
    world.reply(Fault("overloaded", retryable=True, retry_after_us=60 * SECOND))
    world.auto = False
    world.wait_until(AT0 + 5 * SECOND)
    assert world.step()
    assert world.heads(FinalForced)
    world.clock += 20 * SECOND
    world.auto = True
    world.crash()
    assert world.heads(RunUnattended)
    assert world.heads(AttemptStarted)[-1].final
    assert world.state.policy.time.us == 5 * SECOND
    check_policy(world.entries)
    stopwatch = Stopwatch()
    for entry in world.entries:
        stopwatch.read(entry)
    assert stopwatch.us == 5 * SECOND
