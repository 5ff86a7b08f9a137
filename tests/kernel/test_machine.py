"""The log-shape invariants, checked after every step of whatever the people and machines around a run can do to it."""

from __future__ import annotations

from typing import Literal

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from weftline.kernel.context import CompactionRule
from weftline.kernel.decide import decide
from weftline.kernel.entries import AwaitOutcome, Effect, How, Limits, TurnCompleted, Verdict
from weftline.kernel.evolve import evolve
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
    RunTool,
    StartChild,
    State,
    encode_state,
)

from . import counts, laws
from .histories import ARGS, EFFECTS, NAMES, SAID, VERDICTS, bring_to_its_end, clients_asked, still_stands
from .world import AT0, DECLARED, SECOND, TOOLS, Answer, Ask, Fault, Reply, World

asks = st.builds(Ask, st.sampled_from(NAMES), st.sampled_from(ARGS))
limits = st.builds(
    Limits,
    max_tool_turns=st.sampled_from([100, 4, 0]),
    on_max_tool_turns=st.sampled_from(["error", "finalize"]),
    loop_soft=st.sampled_from([3, 2, 0]),
    loop_hard=st.sampled_from([6, 4]),
    tool_budgets=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2), max_size=3),
    local_timeout_us=st.just(5 * SECOND),
    on_local_timeout=st.sampled_from(["end", "report"]),
    max_retries=st.sampled_from([3, 0]),
    in_doubt_followup=st.sampled_from(["block", "allow"]),
    max_concurrent_calls=st.sampled_from([64, 1]),
    max_turns=st.sampled_from([None, None, 2]),
    output_retries=st.sampled_from([1, 0, 2]),
    check_output=st.booleans(),
    await_timeout_us=st.sampled_from([None, 5 * SECOND]),
    on_await_expired=st.sampled_from(["deny", "end"]),
    grant_ttl_us=st.sampled_from([900 * SECOND, SECOND]),
    await_gate=st.booleans(),
    nobody_to_ask=st.sampled_from([False, False, True]),
    in_doubt=st.sampled_from(["report", "ask"]),
    compaction=st.sampled_from([None, CompactionRule(), CompactionRule(at_tokens=30)]),
)


class RunMachine(RuleBasedStateMachine):
    world: World

    @initialize(limits=limits, gated=st.booleans())
    def start(self, limits: Limits, gated: bool) -> None:
        self.world = World(limits, gated=gated)
        self.replayed = State()
        self.messages = 0

    @property
    def waiting(self) -> list[int]:
        return clients_asked(self.world)

    @rule(auto=st.booleans())
    def the_driver_is_quick_or_slow(self, auto: bool) -> None:
        """A slow driver leaves room for events between two of its appends."""
        self.world.auto = auto

    @rule()
    def the_driver_takes_a_step(self) -> None:
        self.world.step()

    @precondition(lambda self: self.world.running)
    @rule(calls=st.lists(asks, min_size=1, max_size=3).map(tuple), words=st.sampled_from(["", "Let me see."]))
    def work_goes_on(self, calls: tuple[Ask, ...], words: str) -> None:
        self.finish_first(Reply(words, calls))

    @precondition(lambda self: self.world.running)
    @rule(
        reply=st.sampled_from(
            [
                Reply("Done."),
                Reply(),
                Reply("Not JSON", output_invalid=True),
                Reply("So far", finish="max_tokens"),
                Reply("So far", (Ask("pay"),), finish="max_tokens"),
                Fault("overloaded", retryable=True, retry_after_us=2 * SECOND),
                Fault("timeout", retryable=True),
                Fault("auth"),
                Fault("context_window"),
            ]
        )
    )
    def work_ends_in_some_way(self, reply: Reply | Fault) -> None:
        self.finish_first(reply)

    def finish_first(self, reply: Reply | Fault) -> None:
        command = self.world.running[0]
        if isinstance(command, CallModel):
            self.world.running.remove(command)
            self.world.model_ends(command, reply)
        elif isinstance(command, CheckOutput):
            self.world.checked(command)
        elif isinstance(command, ConsultPolicy):
            self.world.judged(command)
        elif isinstance(command, Compact):
            self.world.summarized(command)
        elif isinstance(command, Consult):
            self.gates_decide(command, None)
        elif isinstance(command, StartChild | FinishChild):
            self.child_moves(command)
        elif isinstance(command, ConsultAwait):
            self.code_is_asked(command, None)
        else:
            self.tool_ends(command, "returned", "happened")

    def child_moves(self, command: StartChild | FinishChild) -> None:
        if not still_stands(self.world, command):
            self.world.running.remove(command)
        elif isinstance(command, StartChild):
            self.world.child_made(command)
        else:
            self.world.child_finished(command)

    @precondition(lambda self: self.world.children)
    @rule(which=st.integers(0, 5), waits=st.booleans())
    def a_child_stands_still_or_goes_on(self, which: int, waits: bool) -> None:
        children = self.world.children
        self.world.child_waits(children[which % len(children)], waits=waits)

    @precondition(lambda self: self.world.children)
    @rule(which=st.integers(0, 2), status=st.sampled_from(["succeeded", "failed", "cancelled"]))
    def a_child_ends(self, which: int, status: Literal["succeeded", "failed", "cancelled"]) -> None:
        children = self.world.children
        self.world.child_ends(children[which % len(children)], status)

    def gates_decide(self, command: Consult, verdict: Verdict | None, *, yields: bool = False) -> None:
        if not still_stands(self.world, command):
            self.world.running.remove(command)
        else:
            self.world.consulted(command, verdict, yields=yields)

    def code_is_asked(self, command: ConsultAwait, outcome: AwaitOutcome | None) -> None:
        if not still_stands(self.world, command):
            self.world.running.remove(command)
        else:
            self.world.code_answers(command, outcome)

    @precondition(lambda self: any(isinstance(command, ConsultAwait) for command in self.world.running))
    @rule(outcome=st.sampled_from(SAID))
    def code_answers_for_people(self, outcome: AwaitOutcome) -> None:
        command = next(command for command in self.world.running if isinstance(command, ConsultAwait))
        self.code_is_asked(command, outcome)

    @precondition(lambda self: self.world.awaits)
    @rule(which=st.integers(0, 2), outcome=st.sampled_from(SAID), digest=st.sampled_from(["", "", "edited"]))
    def a_person_answers(self, which: int, outcome: AwaitOutcome, digest: str) -> None:
        awaits = self.world.awaits
        self.world.say(outcome, awaits[which % len(awaits)], digest=digest)

    @precondition(lambda self: self.world.consults)
    @rule(which=st.integers(0, 2), verdict=st.sampled_from(VERDICTS), yields=st.booleans())
    def the_gates_decide(self, which: int, verdict: Verdict, yields: bool) -> None:
        consults = self.world.consults
        self.gates_decide(consults[which % len(consults)], verdict, yields=yields)

    @precondition(lambda self: any(isinstance(command, CheckOutput) for command in self.world.running))
    @rule()
    def the_answer_is_rejected(self) -> None:
        for command in self.world.running:
            if isinstance(command, CheckOutput):
                self.world.checked(command, accepted=False)
                return

    @precondition(lambda self: self.world.tool_calls or self.world.reconciles)
    @rule(
        which=st.integers(0, 2),
        how=st.sampled_from(["returned", "failed", "timeout"]),
        answer=st.sampled_from(["happened", "will_not_happen", "unknown"]),
    )
    def work_on_a_tool_ends(self, which: int, how: How, answer: Answer) -> None:
        work = [*self.world.tool_calls, *self.world.reconciles]
        self.tool_ends(work[which % len(work)], how, answer)

    @precondition(lambda self: self.world.hosts)
    @rule(which=st.integers(0, 1), ask=asks)
    def code_asks_for_a_call(self, which: int, ask: Ask) -> None:
        hosts = self.world.hosts
        self.world.ask_further(hosts[which % len(hosts)], ask)

    def tool_ends(self, command: RunTool | Reconcile, how: How, answer: Answer) -> None:
        if not still_stands(self.world, command):
            self.world.running.remove(command)
        elif isinstance(command, RunTool):
            self.world.finish(command, how=how)
        else:
            self.world.reconciled(command, answer)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 2))
    def a_client_answers(self, which: int) -> None:
        self.world.answer(self.waiting[which % len(self.waiting)])

    @rule(steering=st.booleans())
    def a_message_comes(self, steering: bool) -> None:
        self.messages += 1
        id = f"m{self.messages}"
        self.world.steer(id) if steering else self.world.follow_up(id)

    @rule()
    def somebody_pauses(self) -> None:
        self.world.pause()

    @precondition(lambda self: self.world.state.control.paused)
    @rule()
    def somebody_resumes(self) -> None:
        self.world.resume()

    @precondition(lambda self: len(self.world.entries) > 20)
    @rule()
    def somebody_cancels(self) -> None:
        self.world.cancel()

    @precondition(lambda self: bool(decide(self.world.state).due_at))
    @rule(late_us=st.sampled_from([-1, 0, SECOND]))
    def a_timer_goes_off(self, late_us: int) -> None:
        due_at = decide(self.world.state).due_at
        assert due_at is not None
        self.world.wait_until(max(self.world.clock, due_at + late_us))

    @rule(gone=st.sampled_from([None, *TOOLS]), changed=st.sampled_from([None, *TOOLS]), to=st.sampled_from(EFFECTS))
    def the_process_dies(self, gone: str | None, changed: str | None, to: Effect) -> None:
        present: dict[str, Effect] = {name: effect for name, effect in DECLARED.items() if name != gone}
        if changed:
            present[changed] = to
        self.world.crash(present)

    @invariant()
    def the_log_keeps_its_shape(self) -> None:
        """K6 to K14, K23, K24"""
        laws.hold(self.world.entries)

    @invariant()
    def the_state_is_the_fold_of_the_log(self) -> None:
        """K2"""
        for at, head in self.world.facts[self.replayed.version :]:
            self.replayed = evolve(self.replayed, head, at)
        assert self.replayed == self.world.state
        counts.exactly(self.world.state)
        assert not self.world.state.broken

    @invariant()
    def the_driver_rests_on_something(self) -> None:
        """K4, K5"""
        decision = decide(self.world.state)
        assert decision == decide(self.world.state)
        s = self.world.state
        asked = self.waiting or self.world.awaits
        assert s.ended or s.control.paused or asked or self.world.children or decision != Decision()
        assert not s.ended or decision == Decision()
        assert not (decision.append and decision.start)
        cancels_children = bool(s.control.cancel and self.world.children)
        assert cancels_children or decision.due_at is None or decision.due_at > max(s.now, AT0)

    @invariant()
    def nothing_is_begun_twice(self) -> None:
        """K14"""
        asked = (Reconcile, Consult, ConsultAwait, StartChild, FinishChild, CheckOutput)  # again after a crash
        begun = [command for command in self.world.begun if not isinstance(command, asked)]
        # What asks for other calls is carried out again, and answered from the log, when it had to wait.
        begun = [command for command in begun if not (isinstance(command, RunTool) and self.is_host(command))]
        assert len(set(begun)) == len(begun)

    def is_host(self, command: RunTool) -> bool:
        turns = {head.turn: head for head in self.world.heads(TurnCompleted)}
        calls = turns[command.turn].calls
        return command.index < len(calls) and calls[command.index].host

    @invariant()
    def the_state_stays_small(self) -> None:
        """K18"""
        open_calls = sum(one.stage != "closed" for one in self.world.state.batch.calls)
        assert len(encode_state(self.world.state)) <= 4096 + 200 * open_calls

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.auto = True
            bring_to_its_end(self.world)
            laws.hold(self.world.entries)


TestRunMachine = RunMachine.TestCase
