"""What a run does with work that a dead process had begun, by the effect of its tools."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from weftline import prompts
from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    AskedCall,
    AttemptStarted,
    CallClosed,
    CallOpened,
    CallStarted,
    Effect,
    Fact,
    Limits,
    RunAdopted,
    RunEnded,
    TurnCompleted,
)
from weftline.kernel.evolve import evolve
from weftline.kernel.state import CallModel, New, Reconcile, RunTool
from weftline.messages import Usage

from .world import AT0, DECLARED, ESTIMATE, MODEL, SECOND, Answer, Ask, Entry, World, call, text


def begun(*names: str, limits: Limits | None = None) -> World:
    world = World(limits)
    world.reply(call(*(Ask(name, {"n": n}) for n, name in enumerate(names))))
    return world


@pytest.mark.parametrize("name", ["look", "save"])
def test_call_that_may_run_again_is_its_next_attempt(name: str) -> None:
    world = begun(name)
    world.crash()
    assert world.running == [RunTool(0, 0, 2)]
    world.crash()
    assert world.running == [RunTool(0, 0, 3)]
    world.play(text())
    assert len(world.heads(CallOpened)) == len(world.heads(CallClosed)) == 1
    assert world.hows() == ["returned"]


@pytest.mark.requirement("run.effect.once")
def test_once_call_is_never_repeated_and_the_model_knows() -> None:
    world = begun("pay")
    world.crash()
    assert world.heads(CallStarted) == [CallStarted(0, 0, 1)]
    assert world.hows() == ["in_doubt"]
    assert world.texts(CallClosed) == [prompts.calls.in_doubt("pay")]
    assert world.heads(CallClosed)[0].is_error
    assert world.running == [CallModel(1, 1)]
    assert world.play(text()).end.status == "succeeded"


@pytest.mark.parametrize(
    ("answer", "hows", "attempts"),
    [("happened", ["returned"], [1]), ("will_not_happen", ["returned"], [1, 2]), ("unknown", ["in_doubt"], [1])],
)
def test_a_reconcile_call_is_asked_about(answer: Answer, hows: list[str], attempts: list[int]) -> None:
    world = begun("move")
    world.crash()
    assert world.running == [Reconcile(0, 0, 1)]
    assert world.reconciled(Reconcile(0, 0, 1), answer)
    world.play(text())
    assert world.hows() == hows
    assert [head.attempt for head in world.heads(CallStarted)] == attempts


def test_a_crash_while_a_tool_is_asked_asks_again() -> None:
    world = begun("move")
    world.crash()
    world.crash()
    assert world.running == [Reconcile(0, 0, 1)]


def test_call_is_not_run_again_in_pause_or_after_cancel() -> None:
    world = begun("move")
    world.crash()
    world.pause()
    assert not world.reconciled(Reconcile(0, 0, 1), "will_not_happen")
    world.resume()
    assert world.running == [Reconcile(0, 0, 1)]
    world.auto = False
    world.cancel()
    assert not world.reconciled(Reconcile(0, 0, 1), "will_not_happen")


def test_only_a_lost_reconcile_call_can_be_started_from_outside() -> None:
    world = begun("move")
    assert not world.offer(CallStarted(0, 0, 2), attempt=1)
    world.crash()
    assert not world.offer(CallStarted(0, 0, 3), attempt=2)
    other = begun("save")
    other.auto = False
    other.crash()
    assert not other.offer(CallStarted(0, 0, 2), attempt=1)


@pytest.mark.parametrize("name", ["look", "save", "move", "pay"])
def test_a_tool_that_is_gone_leaves_its_call_in_doubt(name: str) -> None:
    world = begun(name)
    present: dict[str, Effect] = {other: effect for other, effect in DECLARED.items() if other != name}
    world.crash(present)
    assert world.hows() == ["in_doubt"]


@pytest.mark.parametrize(
    ("recorded", "present", "stricter"),
    [
        ("look", "idempotent", "idempotent"),
        ("look", "reconcile", "reconcile"),
        ("save", "once", "once"),
        ("save", "read", "idempotent"),
        ("move", "idempotent", "reconcile"),
        ("pay", "read", "once"),
    ],
)
def test_the_stricter_of_the_recorded_and_the_present_effect_rules(
    recorded: str, present: Effect, stricter: Effect
) -> None:
    world = begun(recorded)
    declared: dict[str, Effect] = {**DECLARED, recorded: present}
    world.crash(declared)
    match stricter:
        case "once":
            assert world.hows() == ["in_doubt"]
        case "reconcile":
            assert world.running == [Reconcile(0, 0, 1)]
        case "read" | "idempotent":
            assert world.running == [RunTool(0, 0, 2)]


def test_calls_that_never_began_are_in_no_doubt() -> None:
    world = begun("pay", "pay", "pay")
    world.crash()
    assert world.hows() == ["in_doubt"]
    assert world.running == [RunTool(0, 1, 1)]


def test_adoption_does_not_touch_effect_of_calls_that_never_began() -> None:
    world = begun("look", "save")
    world.crash()
    world.finish(RunTool(0, 0, 2))
    world.crash()
    assert world.running == [RunTool(0, 1, 2)]


def test_a_call_with_the_client_is_untouched_by_a_crash() -> None:
    world = begun("local", "local_read")
    entries, due_at = len(world.entries), decide(world.state).due_at
    world.crash()
    assert len(world.entries) == entries
    assert decide(world.state).due_at == due_at
    assert world.answer(1)
    assert world.answer(0)
    assert world.running == [CallModel(1, 1)]


def test_adoption_beside_a_call_with_the_client_leaves_its_deadline() -> None:
    world = begun("local", "look")
    due_at = decide(world.state).due_at
    world.clock += 60 * SECOND
    world.crash()
    assert world.heads(RunAdopted) == [RunAdopted(1, {"look": "read"})]
    assert decide(world.state).due_at == due_at
    assert len(world.heads(CallOpened)) == 2


def test_finished_calls_and_completed_turns_are_not_repeated() -> None:
    world = begun("save", "look")
    world.finish(RunTool(0, 0, 1))
    world.crash()
    assert world.running == [RunTool(0, 1, 2)]
    assert sum(isinstance(command, CallModel) for command in world.begun) == 1


def test_after_doubt_same_call_is_blocked_and_others_are_not() -> None:
    world = begun("pay")
    world.crash()
    world.play(call(Ask("pay", {"n": 0}), Ask("pay", {"n": 1}), Ask("send", {"n": 0})), text())
    assert sorted(world.hows(1)) == ["repeat_of_doubt", "returned", "returned"]
    told = world.texts(CallClosed)[1]
    assert told == prompts.calls.repeat_of_doubt("pay")


def test_the_block_after_a_doubt_can_be_lifted() -> None:
    world = begun("pay", limits=Limits(in_doubt_followup="allow"))
    world.crash()
    world.play(call(Ask("pay", {"n": 0})), text())
    assert world.hows() == ["in_doubt", "returned"]


def test_a_crash_with_nothing_under_way_adds_no_entry() -> None:
    world = World()
    world.pause()
    world.reply(call("look"))
    entries = len(world.entries)
    world.crash()
    assert len(world.entries) == entries


@pytest.mark.parametrize(
    "impossible",
    [
        CallClosed(0, 5, "c0-5", "look", "returned"),
        CallClosed(0, 0, "c0-0", "look", "returned"),
        CallOpened(0, 1, "c0-1", "pay", "d"),
        CallOpened(0, 0, "c0-0", "look", "d"),
        CallOpened(0, 2, "c0-2", "local", "d", client="sdk"),
        CallStarted(0, 1, 1),
        CallStarted(0, 2, 1),
        TurnCompleted(0, 1),
        AttemptStarted(1, 1, MODEL),
        AttemptStarted(3, 1, MODEL),
    ],
    ids=lambda head: f"{type(head).__name__}",
)
def test_a_damaged_log_ends_its_run_instead_of_the_server(impossible: Fact) -> None:
    world = begun("look", "pay", "local")
    world.finish(RunTool(0, 0, 1))
    world.entries.append(Entry(world.clock, impossible))
    world.state = evolve(world.state, impossible, world.clock)
    assert world.state.broken
    world.settle()
    assert (world.end.status, world.end.code) == ("failed", "worker_error")
    assert world.texts(RunEnded) == ["The run's log is damaged, so the run cannot continue."]
    assert [head.how for head in world.heads(CallClosed) if head.index in (1, 2)] == ["in_doubt", "not_run"]


asked = World()
"""A run whose model has asked for two server-side calls and two of a client, which have the same id by mistake."""
asked.auto = False
asked.offer(
    TurnCompleted(
        0,
        1,
        "tool_use",
        calls=(
            AskedCall("a", "scan", "d", "ok", "read", None, True),
            AskedCall("b", "send", "d", "ok", "once", None, True),
            AskedCall("c", "local", "d", "ok", "read", "sdk", True),
            AskedCall("c", "local", "d", "ok", "read", "sdk", True),
        ),
        signature="s",
    )
)


@pytest.mark.parametrize(
    ("before", "impossible"),
    [
        ((), CallClosed(0, 0, "a", "scan", "returned")),
        ((), CallStarted(0, 0, 1)),
        ((), CallOpened(0, 0, "a", "scan", "d", client="sdk")),
        ((), CallOpened(0, 2, "c", "local", "d")),
        ((CallOpened(0, 2, "c", "local", "d", client="sdk"),), CallOpened(0, 3, "c", "local", "d", client="sdk")),
    ],
    ids=["closed unopened", "started unopened", "to a client", "from a client", "one id twice"],
)
def test_call_that_was_only_requested_can_be_opened_unchanged(before: tuple[Fact, ...], impossible: Fact) -> None:
    state = asked.state
    for head in before:
        state = evolve(state, head, AT0)
    assert not state.broken
    broken = evolve(state, impossible, AT0)
    assert broken.broken
    assert replace(broken, broken="", version=state.version) == state


def test_calls_that_began_in_any_order_are_known_in_theirs() -> None:
    state = asked.state
    opened = [CallOpened(0, n, id, name, "d", "read") for n, id, name in ((0, "a", "scan"), (1, "b", "send"))]
    for head in (*opened, CallStarted(0, 1, 1), CallStarted(0, 0, 1)):
        state = evolve(state, head, AT0)
    assert state.batch.running == (0, 1)


def test_no_call_takes_active_time_away() -> None:
    world = begun("look")
    world.offer(replace(world.closing(0), active_us=-5), attempt=1)
    assert world.state.totals.active_us == 11


def test_damaged_log_still_counts_model_call_that_was_open() -> None:
    world = World()
    world.append(New(CallStarted(0, 0, 1)))
    world.settle()
    assert (world.end.code, world.end.usage) == ("worker_error", Usage(input=ESTIMATE))


def test_a_fact_after_the_end_changes_nothing_but_the_mark() -> None:
    world = World().play(text())
    ended = world.state
    after = evolve(ended, CallStarted(0, 0, 1), world.clock)
    assert after.broken
    assert replace(after, broken="", version=ended.version) == ended


def test_call_asked_for_keeps_what_was_found_out_about_it() -> None:
    asked = AskedCall("x", "pay", "d", "ok", "idempotent", None, True)
    world = World()
    world.auto = False
    world.offer(TurnCompleted(0, 1, "tool_use", calls=(asked,), signature="s"))
    world.settle()
    opened = world.heads(CallOpened)[0]
    assert (opened.id, opened.name, opened.digest, opened.effect) == ("x", "pay", "d", "idempotent")
