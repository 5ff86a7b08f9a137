"""Awaits: when people are asked, what their answers allow, and that nothing begins without what it needs."""

from __future__ import annotations

import pytest

from weftline.kernel.decide import decide
from weftline.kernel.entries import AwaitClosed, AwaitOpened, CallClosed, CallOpened, CallStarted, Limits, RunAdopted
from weftline.kernel.policy import PolicyRule
from weftline.kernel.state import Decision, StartChild

from .world import AT0, SECOND, Ask, World, call, text


def asked(*asks: Ask | str, limits: Limits | None = None, gated: bool = False) -> World:
    world = World(limits, gated=gated)
    world.reply(call(*asks))
    return world


def names_begun(world: World) -> list[str]:
    return [world.state.batch.calls[head.index].name for head in world.heads(CallStarted)]


@pytest.mark.requirement("run.confirm.asked")
def test_other_calls_of_turn_do_not_wait_for_people() -> None:
    world = asked("wire", "look", "wire", "save")
    assert [head.id for head in world.heads(AwaitOpened)] == ["await_0_0_1", "await_0_2_1"]
    while world.tool_calls:
        world.finish(world.tool_calls[0])
    assert names_begun(world) == ["look", "save"]
    assert world.state.waits_for_people
    assert decide(world.state) == Decision()
    assert world.say("approved", "await_0_2_1")
    world.finish(world.tool_calls[0])
    assert world.say("denied", "await_0_0_1")
    world.play(text())
    assert world.hows(0) == ["returned", "returned", "returned", "denied"]
    assert world.model_calls == 2


@pytest.mark.requirement("run.grant.bound", "run.grant.edited")
def test_call_is_announced_and_begins_with_the_approved_arguments() -> None:
    world = asked("wire")
    assert world.heads(CallOpened) == []
    assert world.say("approved", digest="edited")
    (opened,), (closed,) = world.heads(CallOpened), world.heads(AwaitClosed)
    assert opened.digest == closed.digest == "edited" != world.heads(AwaitOpened)[0].digest
    assert len(world.tool_calls) == 1


@pytest.mark.requirement("run.grant.expiry")
def test_lapsed_approval_is_requested_again_before_its_call() -> None:
    world = asked("look", "wire", limits=Limits(grant_ttl_us=60 * SECOND))
    assert world.say("approved")
    assert decide(world.state).due_at == AT0 + 60 * SECOND
    world.wait_until(AT0 + 60 * SECOND)
    world.finish(world.tool_calls[0])
    assert [head.id for head in world.heads(AwaitOpened)] == ["await_0_1_1", "await_0_1_2"]
    assert names_begun(world) == ["look"]
    assert world.say("approved", "await_0_1_2")
    assert names_begun(world) == ["look", "wire"]


@pytest.mark.requirement("run.grant.single_use")
def test_approval_is_for_one_call_and_survives_a_crash() -> None:
    world = asked("wipe", "wipe")
    assert world.say("approved")
    assert len(world.tool_calls) == 1
    world.crash()
    assert [head.attempt for head in world.heads(CallStarted)] == [1, 2]
    assert len(world.heads(AwaitOpened)) == 2
    world.finish(world.tool_calls[0])
    assert len(world.heads(CallStarted)) == 2
    assert world.awaits == ["await_0_1_1"]


@pytest.mark.requirement("run.pause.while_waiting")
def test_paused_run_takes_answer_and_resumed_one_waits_for_it() -> None:
    world = asked("wire")
    world.pause()
    assert world.say("approved")
    assert world.heads(CallStarted) == []
    world.resume()
    assert len(world.heads(CallStarted)) == 1
    other = asked("wire")
    other.pause()
    other.resume()
    assert other.heads(CallStarted) == []
    assert other.say("approved")
    assert len(other.heads(CallStarted)) == 1


@pytest.mark.requirement("run.await.once")
def test_await_has_one_answer_of_kind_that_it_takes() -> None:
    world = asked("wire", "ask_user", "present_plan")
    assert not world.say("answered", "await_0_0_1")
    assert not world.say("approved", "await_0_1_1")
    assert not world.say("expired", "await_0_0_1")
    assert not world.say("withdrawn", "await_0_0_1")
    assert not world.say("approved", "await_0_0_1", by="")
    assert world.say("answered", "await_0_1_1")
    assert not world.say("answered", "await_0_1_1")
    assert world.say("approved", "await_0_2_1")
    assert world.hows(0) == ["answered", "answered"]


def test_client_is_offered_call_only_when_it_is_approved() -> None:
    world = asked("local_wire")
    assert world.heads(CallOpened) == []
    assert world.say("approved")
    assert [head.client for head in world.heads(CallOpened)] == ["sdk"]
    assert world.answer(0)


@pytest.mark.requirement("run.confirm.expiry")
def test_unanswered_question_is_denied_or_ends_the_run() -> None:
    for rule, hows in (("deny", ["denied"]), ("end", ["not_run"])):
        world = asked("wire", limits=Limits(await_timeout_us=5 * SECOND, on_await_expired=rule))  # type: ignore[arg-type]
        assert decide(world.state).due_at == AT0 + 5 * SECOND
        world.crash()
        world.wait_until(AT0 + 5 * SECOND)
        assert [head.outcome for head in world.heads(AwaitClosed)] == ["expired"]
        assert world.hows(0) == hows
        assert world.heads(RunAdopted) == []
        if rule == "end":
            assert world.end.code == "await_expired"


def test_steering_and_a_cancel_withdraw_what_people_are_asked() -> None:
    for move in (lambda world: world.steer("m1"), lambda world: world.cancel()):  # type: ignore[misc]
        world = asked("wire", "wipe")
        assert move(world)
        assert [head.outcome for head in world.heads(AwaitClosed)] == ["withdrawn", "withdrawn"]
        assert world.heads(CallStarted) == []


def test_person_resolves_a_call_in_doubt() -> None:
    for outcome, hows, starts in (("approved", [], 2), ("answered", ["returned"], 1), ("denied", ["in_doubt"], 1)):
        world = asked("pay", limits=Limits(in_doubt="ask"))
        world.crash()
        assert [head.kind for head in world.heads(AwaitOpened)] == ["doubt"]
        world.crash()
        assert len(world.heads(RunAdopted)) == 1  # waiting is no work that a new process would take over
        assert world.say(outcome)  # type: ignore[arg-type]
        assert (world.hows(0), len(world.heads(CallStarted))) == (hows, starts)


def test_run_without_people_ends_when_only_they_could_help() -> None:
    world = asked("wire", "look", limits=Limits(nobody_to_ask=True, await_gate=True))
    (consult,) = [command for command in world.running if hasattr(command, "id")]
    assert not world.state.ended
    world.code_answers(consult)  # type: ignore[arg-type]
    assert not world.state.ended
    world.finish(world.tool_calls[0])
    assert world.end.code == "nobody_to_ask"
    assert world.hows(0) == ["returned", "not_run"]


@pytest.mark.requirement("run.confirm.fail_closed", "run.budget.intercept")
def test_nobody_is_asked_about_a_call_that_cannot_begin_anyway() -> None:
    silent = asked("wire", limits=Limits(interrupts_allowed=False))
    assert (silent.hows(0), silent.heads(AwaitOpened)) == (["blocked"], [])
    spent = asked("wire", "wire", limits=Limits(tool_budgets={"wire": 1}))
    assert (spent.hows(0), len(spent.heads(AwaitOpened))) == (["budget"], 1)


# Tools that ask in place of giving a result, and calls that lack something


@pytest.mark.requirement("run.await.tool_question")
@pytest.mark.parametrize("outcome", ["answered", "denied"])
@pytest.mark.parametrize("crash", ["", "before", "after"])
def test_tool_that_asked_is_never_repeated_wherever_it_dies(outcome: str, crash: str) -> None:
    world = asked("pay", "look")
    assert world.asks_back(world.tool_calls[0])
    if crash == "before":
        world.crash()
    while world.tool_calls:  # the others do not wait
        world.finish(world.tool_calls[0])
    assert {*names_begun(world)} == {"pay", "look"} and world.state.waits_for_people
    world.auto = crash != "after"
    assert world.say("answered" if outcome == "answered" else "denied")
    if crash == "after":
        world.crash()
        world.settle()
        world.auto = True
    world.play(text())
    assert world.hows(0) == ["returned", "returned" if outcome == "answered" else "denied"]
    assert [head.index for head in world.heads(CallStarted)].count(0) == 1 and world.end.status == "succeeded"


def test_tool_asks_once_and_only_in_interruptible_runs() -> None:
    world = asked("look", limits=Limits(interrupts_allowed=False))
    assert not world.asks_back(world.tool_calls[0])
    world = asked("look")
    command = world.tool_calls[0]
    assert world.asks_back(command)
    world.running.append(command)
    assert not world.asks_back(command)


def test_cancel_takes_back_what_tool_asked_and_leaves_no_doubt() -> None:
    world = asked("pay")
    assert world.asks_back(world.tool_calls[0]) and world.cancel()
    assert (world.hows(0), world.heads(AwaitClosed)[0].outcome) == (["cancelled"], "withdrawn")


def test_a_question_of_a_tool_expires_like_any_other() -> None:
    world = asked("pay", limits=Limits(await_timeout_us=60 * SECOND))
    command = world.tool_calls[0]
    world.running.remove(command)
    one = world.state.batch.calls[0]
    assert world.offer(AwaitOpened(0, 0, "await_0_0_1", "question", one.digest, 60 * SECOND), attempt=1)
    world.wait_until(AT0 + 61 * SECOND)
    assert world.hows(0) == ["denied"]


def test_agent_is_not_called_with_a_lapsed_approval() -> None:
    world = asked("hire", limits=Limits(grant_ttl_us=60 * SECOND))
    assert world.say("approved") and world.heads(CallOpened)
    assert [type(command) for command in world.running] == [StartChild]
    assert decide(world.state).due_at == AT0 + 60 * SECOND
    world.auto = False
    world.wait_until(AT0 + 60 * SECOND)
    assert not world.offer(CallStarted(0, 0, 1, child="run_1", id="c0-0", name="hire"), attempt=1)
    world.settle()
    assert (world.hows(0), world.heads(CallStarted)) == (["skipped"], [])


@pytest.mark.parametrize("outcome", ["answered", "denied"])
@pytest.mark.parametrize("ending", ["cancel", "timeout", "time_budget"])
def test_persons_decision_survives_the_end_of_the_run(outcome: str, ending: str) -> None:
    policy = PolicyRule(time_budget_us=9 * SECOND) if ending == "time_budget" else None
    world = asked("pay", "ask_user", "local", limits=Limits(policy=policy, local_timeout_us=5 * SECOND))
    assert world.asks_back(world.tool_calls[0])
    world.auto = False
    for id in ("await_0_0_1", "await_0_1_1"):
        assert world.say(outcome, id)  # type: ignore[arg-type]
    if ending == "cancel":
        assert world.cancel()
    elif ending == "timeout":
        world.wait_until(AT0 + 5 * SECOND)
    else:
        world.answer(2)
        world.wait_until(AT0 + 60 * SECOND)
    world.settle()
    hows = {head.index: head.how for head in world.heads(CallClosed)}
    said = ("returned", "answered") if outcome == "answered" else ("denied", "denied")
    assert (hows[0], hows[1]) == said


def test_persons_knowledge_of_a_doubt_survives_a_cancel() -> None:
    world = asked("pay", limits=Limits(in_doubt="ask"))
    world.crash()
    world.auto = False
    assert world.say("answered") and world.cancel()
    world.settle()
    assert (world.hows(0), world.end.status) == (["returned"], "cancelled")
