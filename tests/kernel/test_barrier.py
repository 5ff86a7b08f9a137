"""When a run stands still for somebody outside, as its log tells it, whatever the run lives through."""

from __future__ import annotations

from hypothesis import given

from weftline.events.waiting import Waiting
from weftline.kernel.entries import AttemptStarted
from weftline.kernel.evolve import evolve
from weftline.kernel.state import State

from .histories import History, bring_to_its_end, histories, lived
from .world import World, call, text


def told(world: World) -> list[tuple[str, tuple[str, ...]]]:
    waiting = Waiting()
    for _at, head in world.facts:
        waiting.see(head)
    changes = [waiting.change(head) for _at, head in world.facts]
    return [(change.to, change.awaits) for change in changes if change is not None]


@given(histories)
def test_pauses_and_resumes_alternate_without_model_calls(history: History) -> None:
    world = lived(history)
    bring_to_its_end(world)
    waiting, s, paused = Waiting(), State(), False
    for at, head in world.facts:
        s = evolve(s, head, at)
        waiting.see(head)
        change = waiting.change(head)
        assert not (paused and isinstance(head, AttemptStarted))
        if change is None:
            continue
        assert (change.to == "paused") != paused
        paused = change.to == "paused"
        assert {*change.awaits} == ({*s.questions.open} if paused else set())
        if paused and not s.control.held_by:
            rest = [index for index, one in enumerate(s.batch.calls) if one.stage != "closed" and not one.awaiting]
            assert all(s.batch.calls[index].offered or s.batch.calls[index].host for index in rest)
    assert not paused


@given(histories)
def test_reader_who_begins_in_middle_is_told_same(history: History) -> None:
    """It has seen the whole log before, so far as there is one, and sees the rest as it comes."""
    facts = [head for _at, head in lived(history).facts]
    whole, early, late = Waiting(), Waiting(), Waiting()
    changes: list[object] = []
    for head in facts:
        whole.see(head)
        changes.append((whole.change(head), whole.offered(head)))
    for head in facts[: len(facts) // 2]:
        early.see(head)
    for head in facts:
        late.see(head)
    for other in (early, late):
        again: list[object] = []
        for head in facts:
            other.see(head)
            again.append((other.change(head), other.offered(head)))
        assert again == changes


def test_one_pause_for_all_questions_and_offers_of_a_turn() -> None:
    world = World()
    world.reply(call("wire", "look", "local", "wire", "local"))
    offers = [world.state.batch.calls[index].id for index in (2, 4)]
    assert told(world) == []
    world.finish(world.tool_calls[0])
    assert told(world) == [("paused", ("await_0_0_1", "await_0_3_1", *offers))]
    assert world.say("denied", "await_0_3_1") and world.answer(4) and world.say("denied", "await_0_0_1")
    assert [to for to, _ in told(world)] == ["paused"]
    assert world.answer(2)
    world.play(text())
    assert [to for to, _ in told(world)] == ["paused", "resumed"]
    assert world.model_calls == 2


def test_run_answered_while_it_works_never_stands_still() -> None:
    world = World()
    world.reply(call("wire", "look"))
    assert world.say("denied", "await_0_0_1")
    world.finish(world.tool_calls[0])
    world.play(text())
    assert told(world) == []
