"""What holds for every history of a run. The numbers K1 to K25 are those of the list of invariants."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.kernel import context
from weftline.kernel import entries as vocabulary
from weftline.kernel.accept import accepts
from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    FACTS,
    CallClosed,
    CallGated,
    CallOpened,
    CallStarted,
    CancelRequested,
    Fact,
    MessageQueued,
    OutputAccepted,
    RunAdopted,
    RunEnded,
    RunPaused,
    RunResumed,
    TimerFired,
    decode_fact,
)
from weftline.kernel.evolve import evolve, fold
from weftline.kernel.notes import PROVIDER_CALL, TEXT_DELTA, THINKING_DELTA, TOOL_PROGRESS
from weftline.kernel.policy import PolicyDecided
from weftline.kernel.state import (
    CallModel,
    CheckOutput,
    Compact,
    Consult,
    ConsultAwait,
    ConsultPolicy,
    Decision,
    FinishChild,
    Reconcile,
    StartChild,
    State,
    decode_state,
    encode_state,
)

from . import counts, laws
from .histories import Choices, History, bring_to_its_end, histories, lived, some_reply
from .world import AT0, MAX_ROUNDS, SECOND, Entry, World, call, text

FOLD_ELSEWHERE = """
import sys
import msgspec
from weftline.kernel.decide import decide
from weftline.kernel.entries import Fact
from weftline.kernel.evolve import fold
from weftline.kernel.state import State, encode_state
for line in sys.stdin.buffer:
    state = fold(State(), msgspec.json.decode(line, type=list[tuple[int, Fact]]))
    print(encode_state(state).hex(), msgspec.json.encode(decide(state)).hex())
"""


def test_same_log_gives_same_state_and_decision_in_every_process() -> None:
    """K1"""
    logs = [lived(History(seed, 200)).facts for seed in range(12)]
    given_in = b"\n".join(msgspec.json.encode(log) for log in logs)

    def elsewhere(hash_seed: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", FOLD_ELSEWHERE],
            input=given_in,
            capture_output=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "TZ": "Asia/Tokyo"},
        )
        return done.stdout.decode().splitlines()

    here: list[str] = []
    for log in logs:
        state = fold(State(), log)
        here.append(f"{encode_state(state).hex()} {msgspec.json.encode(decide(state)).hex()}")
    assert elsewhere("1") == elsewhere("2") == here


@pytest.mark.requirement("run.replay.fold")
@given(histories, st.integers(0, 300))
def test_log_folded_in_pieces_gives_same_state_and_decision(history: History, cut: int) -> None:
    """K2"""
    world = lived(history)
    facts, cut = world.facts, min(cut, len(world.entries))
    whole = fold(State(), facts)
    assert whole == world.state
    assert whole.version == len(facts)
    first = fold(State(), facts[:cut])
    stored = decode_state(encode_state(first))
    assert stored == first
    assert fold(stored, facts[cut:]) == whole
    assert decide(whole) == decide(fold(stored, facts[cut:]))


def test_no_observation_is_taken_for_a_fact() -> None:
    """K3"""
    for kind in (TEXT_DELTA, THINKING_DELTA, PROVIDER_CALL, TOOL_PROGRESS):
        assert kind not in FACTS
        with pytest.raises(msgspec.ValidationError):
            decode_fact.decode(json.dumps({"type": kind, "turn": 0, "attempt": 1}))


@given(histories)
def test_driver_comes_to_rest_and_then_wants_same_twice(history: History) -> None:
    """K4"""
    world = lived(history)
    assert world.settle() <= MAX_ROUNDS
    decision = decide(world.state)
    assert decision.append == ()
    assert decision == decide(world.state)
    assert len(set(decision.start)) == len(decision.start)


@given(histories)
def test_open_run_always_waits_for_something_that_has_name(history: History) -> None:
    """K5"""
    world = lived(history)
    world.settle()
    s, decision = world.state, decide(world.state)
    waits = s.questions.open or s.open_children
    assert s.ended or decision.start or decision.due_at or s.control.paused or waits
    cancels_children = s.control.cancel and s.open_children  # at once, also by the next process
    assert decision.due_at is None or decision.due_at > s.now or cancels_children


@given(histories)
def test_run_waits_for_people_only_while_it_asks(
    history: History,
) -> None:
    s = State()
    for at, head in lived(history).facts:
        s = evolve(s, head, at)
        over = s.ended or s.control.cancel or s.limits.nobody_to_ask or type(head) is TimerFired
        if over or s.control.paused:
            continue
        asked = any(question.kind != "call" for question in s.questions.open.values())
        decision = decide(s)
        at_work = decision.append or decision.start or s.open_children
        assert s.waits_for_people == (asked and not at_work)


@given(histories)
def test_a_run_ends_when_everybody_does_what_it_waits_for(history: History) -> None:
    """K5, carried to its end"""
    world = lived(history)
    bring_to_its_end(world)
    laws.hold(world.entries)
    assert not world.state.broken


@pytest.mark.requirement("run.end.frozen")
@given(histories)
def test_a_run_ends_once_and_takes_nothing_more(history: History) -> None:
    """K6"""
    world = lived(history)
    asked = [(entry.head, 0) for entry in world.entries if isinstance(entry.head, CallClosed)]
    running = tuple(world.running)
    bring_to_its_end(world)
    laws.one_terminal_and_nothing_after_it(world.entries)
    assert decide(world.state) == Decision()
    late: list[tuple[Fact, int]] = [
        *asked,
        (CancelRequested(), 0),
        (RunPaused(), 0),
        (RunResumed(), 0),
        (MessageQueued("late", "steer"), 0),
        (TimerFired(world.clock + 900 * SECOND), 0),
        (RunAdopted(99), 0),
    ]
    for command in running:
        if isinstance(command, CallModel):
            late.append((world.model_outcome(command, some_reply(Choices(history.data))), 0))
        elif isinstance(command, Consult):
            late.append((CallGated(command.turn, command.index, "ok", "d"), 0))
        elif isinstance(command, StartChild):
            late.append((CallStarted(command.turn, command.index, 1, child="run"), 0))
        elif isinstance(command, FinishChild):
            late.append((CallClosed(command.turn, command.index, "c", "ask", "returned"), 1))
        elif isinstance(command, ConsultAwait):
            late.append((vocabulary.AwaitPassed(command.id), 0))
        elif isinstance(command, CheckOutput):
            late.append((OutputAccepted(command.turn), 0))
        elif isinstance(command, ConsultPolicy):
            late.append((PolicyDecided(command.turn), 0))
        elif isinstance(command, Compact):
            late.append((world.summary_outcome(command), 0))
        else:
            closing = CallClosed(command.turn, command.index, "c", "look", "returned")
            late.append((closing, command.attempt))
    assert not [head for head, attempt in late if accepts(world.state, head, attempt=attempt)]


@pytest.mark.requirement("run.batch.pairing")
@given(histories)
def test_calls_open_and_close_once_before_the_run_continues(history: History) -> None:
    """K7"""
    world = lived(history)
    laws.every_call_is_answered_before_the_run_goes_on(world.entries)
    bring_to_its_end(world)
    laws.every_call_is_answered_before_the_run_goes_on(world.entries)


@pytest.mark.requirement("run.effect.closed_once")
@given(histories)
def test_call_opens_before_it_starts_and_closes_once(history: History) -> None:
    """K8"""
    laws.calls_open_before_they_start_and_close_once(lived(history).entries)


@given(histories, st.integers(0, 300))
def test_nothing_starts_after_cancel_and_run_ends_as_cancelled(history: History, cut: int) -> None:
    """K9"""
    world = lived(history.first(12 + cut))
    if world.cancel():
        while world.children:
            assert decide(world.state) == Decision(due_at=0)
            world.child_ends(world.children[0], "cancelled")
        assert world.end.status == "cancelled"
        assert not decide(world.state).start
    laws.nothing_starts_after_a_cancel(world.entries)


@given(histories)
def test_nothing_starts_in_a_pause_or_past_a_deadline(history: History) -> None:
    """K10"""
    laws.nothing_starts_in_a_pause_or_past_a_deadline(lived(history).entries)


@pytest.mark.requirement("run.final.once")
@given(histories)
def test_at_most_one_forced_final_turn_with_first_reason(history: History) -> None:
    """K11"""
    world = lived(history)
    bring_to_its_end(world)
    laws.the_final_turn_is_forced_once(world.entries)


@given(histories)
def test_counted_calls_never_exceed_their_budget(history: History) -> None:
    """K12"""
    laws.budgets_hold(lived(history).entries)


@given(histories)
def test_attempts_of_turn_rise_and_only_open_one_can_complete(history: History) -> None:
    """K13"""
    laws.attempts_rise_and_only_the_open_one_ends(lived(history).entries)


@given(histories, st.integers(0, 300))
def test_after_a_crash_anywhere_no_attempt_is_begun_twice(history: History, cut: int) -> None:
    """K14"""
    world = lived(history.first(12 + cut))
    world.crash()
    bring_to_its_end(world)
    laws.no_call_starts_twice_but_by_right(world.entries)
    # What is only asked may be asked again.
    asked = (Reconcile, Consult, ConsultAwait, ConsultPolicy, StartChild, FinishChild, CheckOutput)
    work = [command for command in world.begun if not isinstance(command, asked)]
    assert len(set(work)) == len(work)


@given(histories)
def test_decision_goes_stale_with_any_fact_but_outcome_does_not(history: History) -> None:
    """K15: a decision rests on the version, which every fact moves; an outcome on its command."""
    world = lived(history)
    world.settle()
    state = State()
    for version, (at, head) in enumerate(world.facts):
        assert state.version == version
        state = evolve(state, head, at)
    if world.state.ended:
        return
    before = world.state
    outstanding = decide(before).start
    for head in (MessageQueued("m", "steer"), TimerFired(world.clock + 1)):
        if accepts(before, head):
            assert evolve(before, head, world.clock).version > before.version
    disturbed = evolve(before, MessageQueued("m", "steer"), world.clock)
    for command in outstanding:
        if isinstance(command, CallModel):
            outcome, attempt = world.model_outcome(command, text()), 0
            stale = msgspec.structs.replace(command, attempt=command.attempt + 1)
            assert not accepts(disturbed, world.model_outcome(stale, text()))
        elif isinstance(command, Consult):
            outcome, attempt = world.gate_outcome(command), 0
        elif isinstance(command, StartChild):
            outcome, attempt = CallStarted(command.turn, command.index, 1, child="run"), 0
        elif isinstance(command, FinishChild):
            outcome, attempt = world.closing(command.index), 1
        elif isinstance(command, CheckOutput):
            outcome, attempt = OutputAccepted(command.turn), 0
        elif isinstance(command, ConsultPolicy):
            outcome, attempt = PolicyDecided(command.turn), 0
        elif isinstance(command, ConsultAwait):
            outcome, attempt = vocabulary.AwaitPassed(command.id), 0
        elif isinstance(command, Compact):
            outcome, attempt = world.summary_outcome(command), 0
        else:
            outcome, attempt = world.closing(command.index), command.attempt
            assert not accepts(disturbed, outcome, attempt=command.attempt + 1)
        assert accepts(disturbed, outcome, attempt=attempt)
        after = evolve(disturbed, outcome, world.clock)
        assert not accepts(after, outcome, attempt=attempt)


@given(st.permutations(range(4)), st.lists(st.sampled_from(["ok", "other"]), min_size=4, max_size=4))
def test_answers_to_different_calls_commute(order: list[int], results: list[str]) -> None:
    """K16"""

    def answered(indexes: list[int]) -> World:
        world = World().play(call("local", "local_read", "local", "local_read"))
        for index in indexes:
            assert world.answer(index, results[index])
        return world

    assert answered(order).state == answered([0, 1, 2, 3]).state


@given(st.integers(0, 4), st.lists(st.integers(1, 299), max_size=4))
def test_deadlines_survive_adoptions_and_early_timers(crashes: int, early: list[int]) -> None:
    """K17"""
    world = World().play(call("local", "look"))
    deadline = AT0 + 300 * SECOND
    for seconds in sorted(early):
        wanted = decide(world.state).start
        world.wait_until(AT0 + seconds * SECOND)
        assert decide(world.state) == Decision(start=wanted, due_at=deadline)
    for _ in range(crashes):
        world.crash()
        assert decide(world.state).due_at == deadline
    world.wait_until(deadline - 1)
    assert not world.state.ended
    world.wait_until(deadline)
    assert world.end.code == "local_timeout"


@given(histories)
def test_counts_and_cursors_are_what_walk_over_calls_finds(history: History) -> None:
    state = State()
    for at, head in lived(history).facts:
        state = evolve(state, head, at)
        counts.exactly(state)


@given(histories)
def test_the_state_stays_small(history: History) -> None:
    """K18"""
    s = lived(history).state
    open_calls = sum(one.stage != "closed" for one in s.batch.calls)
    assert len(encode_state(s)) <= 4096 + 200 * open_calls


small = st.integers(-1, 3)
asked_calls = st.lists(
    st.builds(
        vocabulary.AskedCall,
        st.sampled_from(["a", "b"]),
        st.sampled_from(["look", "pay", "nowhere"]),
        st.sampled_from(["d1", "d2"]),
        st.sampled_from(["ok", "unknown", "invalid"]),
        st.sampled_from(["read", "idempotent", "reconcile", "once"]),
        st.sampled_from([None, "sdk"]),
        st.booleans(),
        asks=st.sampled_from([None, vocabulary.Asks("confirm"), vocabulary.Asks("question")]),
    ),
    max_size=3,
).map(tuple)
hows = st.sampled_from(["returned", "failed", "timeout", "unknown", "invalid", "budget", "skipped", "in_doubt", "loop"])
ids = st.lists(st.sampled_from(["a", "b"]), max_size=2).map(tuple)
effects = st.dictionaries(
    st.sampled_from(["look", "pay"]), st.sampled_from(["read", "idempotent", "reconcile", "once"])
)
any_fact: st.SearchStrategy[Fact] = st.one_of(
    st.builds(vocabulary.RunCreated, st.just(1), st.just(vocabulary.Limits(tool_budgets={"look": 1}))),
    st.builds(vocabulary.HistoryPinned, small),
    st.builds(vocabulary.RunAdopted, small, effects),
    st.builds(vocabulary.AttemptStarted, small, small, st.just(vocabulary.ModelRef()), st.booleans(), small),
    st.builds(
        vocabulary.AttemptFailed,
        small,
        small,
        st.just("server"),
        st.sampled_from(["error", "abandoned", "cancelled"]),
        st.booleans(),
        st.none() | small,
        active_us=small,
    ),
    st.builds(
        vocabulary.TurnCompleted,
        small,
        small,
        st.sampled_from([None, "end_turn", "max_tokens"]),
        calls=asked_calls,
        signature=st.sampled_from(["", "s"]),
        has_text=st.booleans(),
        output_invalid=st.booleans(),
        active_us=small,
    ),
    st.builds(vocabulary.OutputRejected, small),
    st.builds(
        CallOpened,
        small,
        small,
        st.just("a"),
        st.just("look"),
        st.just("d1"),
        client=st.sampled_from([None, "sdk"]),
        timeout_us=st.none() | small,
        blocked=st.booleans(),
    ),
    st.builds(CallStarted, small, small, small),
    st.builds(
        vocabulary.AwaitOpened,
        small,
        small,
        st.sampled_from(["a", "b"]),
        st.sampled_from(["confirm", "question", "plan", "doubt"]),
        st.just("d1"),
        st.none() | small,
    ),
    st.builds(vocabulary.AwaitPassed, st.sampled_from(["a", "b"])),
    st.builds(
        vocabulary.AwaitClosed,
        small,
        small,
        st.sampled_from(["a", "b"]),
        st.sampled_from(["approved", "denied", "answered", "expired", "withdrawn"]),
        st.just("ops"),
        st.just("d1"),
    ),
    st.builds(CallClosed, small, small, st.just("a"), st.just("look"), hows, active_us=small, size=small),
    st.builds(vocabulary.LoopDetected, small, st.booleans(), st.just(("look",))),
    st.builds(vocabulary.BudgetExceeded, st.just("look"), small, small),
    st.builds(vocabulary.ResultsOverBudget, small, small, small),
    st.builds(
        vocabulary.CallGated,
        small,
        small,
        st.sampled_from(["ok", "blocked", "answered"]),
        st.just("d1"),
        over=st.none() | st.builds(vocabulary.Over, small, small),
    ),
    st.builds(vocabulary.FinalForced, st.sampled_from(["loop_detected", "max_tool_turns"])),
    st.builds(MessageQueued, st.sampled_from(["a", "b"]), st.sampled_from(["steer", "follow_up"])),
    st.builds(vocabulary.MessagesTaken, ids),
    st.builds(context.ContextMeasured, small, st.sampled_from(["size", "context_window"]), small, small),
    st.builds(context.CompactionStarted, small, small, st.sampled_from(["size", "context_window"])),
    st.builds(context.CompactionFailed, small, st.sampled_from(["error", "useless", "abandoned"]), active_us=small),
    st.builds(context.ContextCompacted, small, small, small, small, active_us=small),
    st.just(context.ContextRestored()),
    st.just(RunPaused()),
    st.just(RunResumed()),
    st.just(CancelRequested()),
    st.builds(TimerFired, small),
    st.builds(RunEnded, st.sampled_from(["succeeded", "failed", "cancelled"])),
)


@given(histories, st.integers(0, 60), st.lists(any_fact, max_size=12))
def test_evolve_takes_facts_in_any_order(history: History, cut: int, facts: list[Fact]) -> None:
    """K19: and decide, asked about whatever came out of it, neither raises nor turns in circles."""
    world = World()
    world.entries, world.running = lived(history).entries[:cut], []
    world.state = fold(State(), world.facts)
    for head in facts:
        world.entries.append(Entry(AT0, head))
        world.state = evolve(world.state, head, AT0)
        decide(world.state)
        counts.hold(world.state)
    assert decode_state(encode_state(world.state)) == world.state
    world.settle()
    if world.state.created and world.state.broken:
        assert world.state.ended


@given(histories)
def test_results_over_budget_are_reported_before_the_model(history: History) -> None:
    laws.large_results_are_talked_about_once(lived(history).entries)


@given(histories)
def test_a_call_in_doubt_blocks_the_same_call_later(history: History) -> None:
    """K23"""
    laws.doubt_blocks_the_same_call(lived(history).entries)


@given(histories, st.integers(-(10**12), 10**12))
def test_active_time_is_a_sum_of_durations(history: History, shift: int) -> None:
    """K24"""
    world = lived(history)
    laws.usage_and_active_time_are_sums(world.entries)
    moved = [(at + shift * (n % 3), head) for n, (at, head) in enumerate(world.facts)]
    assert fold(State(), moved).totals.active_us == world.state.totals.active_us >= 0


def test_blocked_call_has_one_entry_for_each_event() -> None:
    """K25: an entry is at most one event, so an opening, a result and a passed budget are three entries."""
    world = World(vocabulary.Limits(tool_budgets={"look": 0})).play(call("look"))
    kinds = [type(entry.head) for entry in world.entries[3:6]]
    assert kinds == [CallOpened, CallClosed, vocabulary.BudgetExceeded]
