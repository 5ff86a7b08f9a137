"""Random histories: a string of random bytes is read as the choices of everybody around the kernel.

The same seed always gives the same history and a smaller length its beginning, so that a failure shrinks to the
earliest moment that shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, TypeVar

from hypothesis import strategies as st

from weftline.kernel.context import CompactionRule
from weftline.kernel.control import LeaseRule
from weftline.kernel.decide import decide
from weftline.kernel.entries import Asks, AwaitOutcome, Effect, How, Limits, Over, Verdict
from weftline.kernel.policy import PolicyDecided, PolicyRule
from weftline.kernel.state import (
    CallModel,
    CheckOutput,
    Compact,
    Consult,
    ConsultAwait,
    ConsultPolicy,
    FinishChild,
    Reconcile,
    RunTool,
    StartChild,
)

from .world import DECLARED, SECOND, TOOLS, Ask, Fault, Reply, World

T = TypeVar("T")


class History(NamedTuple):
    seed: int
    length: int

    @property
    def data(self) -> bytes:
        return Random(self.seed).randbytes(self.length)

    def first(self, length: int) -> History:
        """The same history, cut off earlier."""
        return History(self.seed, min(self.length, length))


histories = st.builds(History, st.integers(0, 2**32), st.integers(16, 800))

NAMES = (*TOOLS, "nowhere")
ARGS: tuple[dict[str, object], ...] = ({}, {}, {"x": 1}, {"x": 1}, {"x": 2}, {"bad": True})
VERDICTS: tuple[Verdict, ...] = ("ok", "ok", "ok", "unknown", "invalid", "blocked", "answered")
SAID: tuple[AwaitOutcome, ...] = ("approved", "approved", "denied", "answered")
SUMMARIES = (CompactionRule(), CompactionRule(at_tokens=100), CompactionRule(at_tokens=40, at_turns=9))
LEASES = (LeaseRule("error"), LeaseRule("fallback", {"local_read": "look"}))
EFFECTS: tuple[Effect, ...] = ("read", "idempotent", "reconcile", "once")


class Choices:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.used = 0
        self.batches: list[tuple[Ask, ...]] = []
        """What the model has asked for so far; models repeat themselves."""

    @property
    def left(self) -> bool:
        return self.used < len(self.data)

    def number(self, below: int) -> int:
        value = self.data[self.used] if self.left else 0
        self.used += 1
        return value % below

    def of(self, options: Sequence[T]) -> T:
        return options[self.number(len(options))]

    def chance(self, one_in: int) -> bool:
        return self.number(one_in) == one_in - 1


def some_limits(c: Choices) -> Limits:
    budgets = c.of(({}, {"look": 1, "pay": 2}, {"look": 0, "local": 1, "nowhere": 1, "scan": 2}, {"pay": 1, "save": 2}))
    return Limits(
        max_tool_turns=c.of((100, 100, 100, 100, 8, 5, 3, 0)),
        on_max_tool_turns=c.of(("finalize", "finalize", "error")),
        loop_soft=c.of((3, 2, 0)),
        loop_hard=c.of((6, 4)),
        tool_budgets=budgets,
        local_timeout_us=c.of((300 * SECOND, 5 * SECOND)),
        on_local_timeout=c.of(("end", "report")),
        max_retries=c.of((3, 3, 3, 1, 0)),
        in_doubt_followup=c.of(("block", "block", "allow")),
        interrupts_allowed=not c.chance(8),
        max_concurrent_calls=c.of((64, 64, 2, 1)),
        max_turns=c.of((None, None, None, 4, 1)),
        output_retries=c.of((1, 1, 2, 0)),
        check_output=c.chance(3),
        max_children=c.of((3, 3, 1)),
        max_depth=c.of((3, 3, 3, 0)),
        tool_output_budget_bytes=c.of((None, None, 0, 25)),
        await_timeout_us=c.of((None, None, 60 * SECOND)),
        on_await_expired=c.of(("deny", "end")),
        grant_ttl_us=c.of((900 * SECOND, 900 * SECOND, 3 * SECOND)),
        await_gate=c.chance(3),
        nobody_to_ask=c.chance(6),
        in_doubt=c.of(("report", "ask")),
        compaction=c.of((None, None, *SUMMARIES)),
        policy=some_policy(c) if c.chance(2) else None,
        leases=c.of((None, *LEASES, LEASES[1])),
    )


def some_policy(c: Choices) -> PolicyRule:
    return PolicyRule(
        max_tool_calls=c.of((None, None, 4, 2, 0)),
        per_turn_max_tool_calls=c.of((None, None, 2, 1)),
        max_consecutive_failed_tool_calls=c.of((None, None, 2, 1)),
        failure_counting=c.of(("turn", "call")),
        time_budget_us=c.of((None, 20 * SECOND, 5 * SECOND, 2)),
        finalizer_grace_us=c.of((None, 3 * SECOND)),
        engine=c.chance(3),
    )


def some_judgement(c: Choices, turn: int) -> PolicyDecided:
    return PolicyDecided(
        turn,
        allowed=c.of((None, None, ("look", "scan", "note"), ())),
        calls_left=c.of((None, None, 1, 0, 50)),
        failures_left=c.of((None, None, 1, 50)),
        disable_tools=c.chance(12),
        failed=c.chance(8),
    )


def some_reply(c: Choices) -> Reply | Fault:
    kind = c.number(24)
    if kind == 0:
        return Fault("overloaded", retryable=True, retry_after_us=c.of((None, 0, SECOND, 60 * SECOND)))
    if kind == 1 and c.chance(2):
        return Fault("context_window")
    if kind == 2:
        return Fault("invalid_request") if c.chance(4) else Fault("timeout", retryable=True)
    if kind == 3:
        return Reply(c.of(("", "Done.")), output_invalid=c.chance(2))
    if kind == 4 and c.chance(3):
        return Reply(c.of(("", "So far")), some_calls(c) if c.chance(2) else (), finish="max_tokens")
    return Reply(c.of(("", "I shall look.")), some_calls(c))


def some_calls(c: Choices) -> tuple[Ask, ...]:
    if c.batches and c.chance(2):
        batch = c.batches[-1 - c.number(min(2, len(c.batches)))]
    else:
        batch = tuple(Ask(c.of(NAMES), c.of(ARGS)) for _ in range(c.of((1, 2, 1, 3))))
    c.batches.append(batch)
    return batch


def some_tool_end(c: Choices) -> tuple[How, str]:
    return c.of((("returned", "ok"), ("returned", "other"), ("failed", "no"), ("timeout", "")))


def something_happens(world: World, c: Choices) -> None:
    """One event of the outside world: mostly work that goes on, now and then a person, a clock or a crash."""
    kind = c.number(32)
    if world.state.limits.policy is not None:
        world.clock += c.of((0, SECOND // 2, 2 * SECOND))
    if kind == 0:
        world.cancel() if c.chance(6) else world.pause()
    elif kind in (1, 2, 3):
        world.resume()
    elif kind == 4:
        world.steer(f"s{len(world.entries)}")
    elif kind == 5:
        world.follow_up(f"f{len(world.entries)}")
    elif kind in (6, 7):
        due_at = decide(world.state).due_at
        times = (world.clock + 1, *((due_at - 1, due_at, due_at + SECOND) if due_at else ()))
        world.wait_until(max(world.clock, c.of(times)))
    elif kind in (8, 9):
        present: dict[str, Effect] = {name: effect for name, effect in DECLARED.items() if not c.chance(8)}
        if c.chance(3):
            present["save"] = c.of(EFFECTS)
        world.crash(present)
    elif kind in (10, 11, 12):
        if waiting := clients_asked(world):
            world.answer(c.of(waiting), c.of(("ok", "other")))
    elif kind in (20, 21, 22) and (waiting := clients_asked(world)):
        a_client_claims(world, c, c.of(waiting))
    elif kind in (16, 17, 18, 19) and world.awaits:
        world.say(c.of(SAID), c.of(world.awaits), digest=c.of(("", "", "", "edited")))
    elif kind in (13, 14, 15) and world.children:
        world.child_ends(c.of(world.children), c.of(("succeeded", "failed", "cancelled")))
    elif kind in (16, 17) and world.state.compaction.in_force:
        world.restore()
    elif world.running:
        grown = c.number(2)
        world.tokens, world.turns, world.spare = world.tokens + 30 * grown, world.turns + grown, c.of((50, 50, 0))
        work_ends(world, c)
    else:
        world.resume()


def a_client_claims(world: World, c: Choices, index: int) -> None:
    token = c.of(("ann", "ben"))
    match c.number(6):
        case 0:
            world.release(index)
        case 1:
            world.claim(index, token, lease_us=3 * SECOND, renewed=True)
        case 2:
            world.answer(index, token=token)
        case _:
            world.claim(index, token, lease_us=c.of((2, SECOND, 30 * SECOND)))


def work_ends(world: World, c: Choices) -> None:
    command = c.of(world.running)
    match command:
        case CallModel():
            world.running.remove(command)
            world.model_ends(command, some_reply(c))
        case RunTool() | Reconcile() | Consult() | StartChild() | FinishChild() | ConsultAwait() if not still_stands(
            world, command
        ):
            world.running.remove(command)
        case RunTool() if command in world.hosts and c.number(4):
            world.ask_further(command, Ask(c.of(NAMES), c.of(ARGS)))
        case RunTool():
            how, result = some_tool_end(c)
            world.finish(command, how=how, result=result, size=10 * c.number(4))
        case Reconcile():
            world.reconciled(command, c.of(("happened", "will_not_happen", "unknown")))
        case Consult():
            digest = c.of((None, None, "changed"))
            over = Over(2, 2 + c.number(3)) if c.chance(4) else None
            asks = Asks("confirm", c.of((None, 5 * SECOND))) if c.chance(5) else None
            world.consulted(command, c.of(VERDICTS), digest=digest, yields=c.chance(3), over=over, asks=asks)
        case ConsultAwait():
            world.code_answers(command, c.of((None, None, *SAID)))
        case StartChild():
            world.child_made(command, fails=c.chance(6))
        case FinishChild():
            world.child_finished(command)
        case ConsultPolicy():
            world.judged(command, some_judgement(c, command.turn))
        case CheckOutput():
            world.checked(command, accepted=not c.chance(4))
        case Compact():
            summary_ends(world, c, command)


def summary_ends(world: World, c: Choices, command: Compact) -> None:
    match c.number(4):
        case 0:
            world.not_summarized(command, retryable=c.chance(2), retry_after_us=c.of((None, 0, SECOND)))
        case 1:
            world.not_summarized(command, "useless")
        case _:
            world.summarized(command, after=c.of((40, 90, 150)))


def clients_asked(world: World) -> list[int]:
    """The calls that clients have yet to answer."""
    return [question.index for question in world.state.questions.open.values() if question.kind == "call"]


def still_stands(
    world: World, command: RunTool | Reconcile | Consult | StartChild | FinishChild | ConsultAwait
) -> bool:
    """Whether the call of a command is still among those of the present turn."""
    return command.turn == world.state.turn - 1 and command.index < len(world.state.batch.calls)


def lived(history: History) -> World:
    """The world after a history; the run may still be open and the driver in mid-step."""
    c = Choices(history.data)
    world = World(some_limits(c), gated=c.chance(3))
    while c.left and not world.state.ended:
        # Mostly the driver comes to rest between two events; a crash or a request may also fall between two appends.
        world.auto = not c.chance(4)
        something_happens(world, c)
        if not world.auto and c.chance(2):
            world.step()
    world.auto = True
    return world


def bring_to_its_end(world: World) -> int:
    """Everybody outside does what the run waits for. Says how many events that took."""
    events = 0
    world.settle()
    while not world.state.ended:
        events += 1
        assert events < 60, "the run does not come to its end"
        decision = decide(world.state)
        waiting = clients_asked(world)
        if world.state.control.paused and not world.state.control.cancel:
            world.resume()
        elif world.children:
            world.child_ends(world.children[0], "cancelled" if world.state.control.cancel else "succeeded")
        elif world.running:
            _carry_out(world)
        elif waiting:
            world.answer(waiting[-1])
        elif world.awaits:
            assert world.say("approved") or world.say("answered")
        else:
            assert decision.due_at is not None, "nothing is outstanding and nobody is asked"
            world.wait_until(decision.due_at)
    return events


def _carry_out(world: World) -> None:
    command = world.running[0]
    if isinstance(command, CallModel):
        world.reply(Reply("Done."))
    elif isinstance(command, CheckOutput):
        world.checked(command)
    elif isinstance(command, ConsultPolicy):
        world.judged(command)
    elif isinstance(command, Compact):
        world.summarized(command)
    elif not still_stands(world, command):
        world.running.remove(command)
    elif isinstance(command, Consult):
        world.consulted(command)
    elif isinstance(command, ConsultAwait):
        world.code_answers(command)
    elif isinstance(command, RunTool):
        world.finish(command)
    elif isinstance(command, StartChild):
        world.child_made(command)
    elif isinstance(command, FinishChild):
        world.child_finished(command)
    else:
        world.reconciled(command, "happened")
