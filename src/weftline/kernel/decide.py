"""`decide`: what a run needs next, from its state alone. `is_outstanding`: whether a running command still matters."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from weftline import prompts
from weftline.kernel import budgeting, compaction, policies, turns
from weftline.kernel.batches import advance
from weftline.kernel.endings import end, settled
from weftline.kernel.entries import KNOWN_RULES
from weftline.kernel.state import (
    Call,
    CallModel,
    CheckOutput,
    Command,
    Compact,
    Consult,
    ConsultAwait,
    ConsultPolicy,
    Decision,
    FinishChild,
    New,
    Reconcile,
    RunTool,
    StartChild,
    State,
)
from weftline.kernel.turns import answered, ask_model

NOTHING = Decision()


def decide(s: State) -> Decision:
    """Returns what to append or, if nothing, what to start, and when to ask again; nothing for a run with unknown
    rules.
    """
    if s.step == "ended" or s.rules not in KNOWN_RULES:  # those of a run that is not created yet are 0
        return NOTHING
    if s.broken:
        return end(s, "failed", code="worker_error", text="The run's log is damaged, so the run cannot continue.")
    if s.control.cancel:
        return _cancelled(s)
    if s.control.held_by:
        return NOTHING
    if s.budget.refused is not None and (asks := budgeting.ask_for_reservation(s)) is not None:
        decision = asks
    elif s.compaction.open:
        decision = compaction.under_way(s)
    elif s.attempt.open:
        decision = turns.model_call(s) if s.attempt.lost else _call_model(s)
    elif s.step == "batch":
        decision = advance(s)
    elif s.step == "answered":
        decision = answered(s)
    else:
        decision = ask_model(s)
    return decision if s.limits.policy is None else _in_time(s, decision)


def _call_model(s: State) -> Decision:
    attempt = s.attempt
    return Decision(start=(CallModel(s.turn, attempt.number, bool(s.guards.final), attempt.choice),))


def _in_time(s: State, decision: Decision) -> Decision:
    """The decision, if the run's policy leaves time for it, and when its time is up."""
    if (cut := policies.out_of_time(s)) is not None:
        return cut
    if type(decision.start[0] if decision.start else None) is CheckOutput and (late := policies.late_check(s)):
        return late
    deadline_at = policies.deadline_at(s)
    if decision.append or deadline_at is None:
        return decision
    due_at = decision.due_at
    return replace(decision, due_at=deadline_at if due_at is None else min(due_at, deadline_at))


def _cancelled(s: State) -> Decision:
    if s.compaction.open:
        return Decision((New(compaction.settled(s, "cancelled")),))
    if s.attempt.open:
        return Decision((New(settled(s, "cancelled")),))
    if s.open_children:
        return Decision(due_at=0)  # they are cancelled first, by the next process if this one dies
    return end(s, "cancelled", reason=s.control.cancel, how="cancelled", closing=prompts.calls.CANCELLED)


def is_outstanding(s: State, command: Command) -> bool:
    match command:
        case CallModel():
            return s.attempt.open and (command.turn, command.attempt) == (s.turn, s.attempt.number)
        case Compact():
            return s.compaction.open and command.number == s.compaction.number
        case CheckOutput():
            return command.turn == s.turn - 1
        case ConsultPolicy():
            return command.turn == s.turn - 1 and s.policy.decided < command.turn and not s.policy.reached
        case RunTool() | Reconcile():
            call = _call(s, command.turn, command.index)
            return call is not None and call.stage == "started" and call.attempt == command.attempt
        case Consult():
            call = _call(s, command.turn, command.index)
            return call is not None and call.gated
        case ConsultAwait():
            return command.id in s.questions.open
        case StartChild():
            call = _call(s, command.turn, command.index)
            return call is not None and call.stage == "opened"
        case FinishChild():
            return _call(s, command.turn, command.index) is not None
        case _:
            assert_never(command)


def _call(s: State, turn: int, index: int) -> Call | None:
    if turn != s.turn - 1 or index >= len(s.batch.calls):
        return None
    call = s.batch.calls[index]
    return None if call.stage == "closed" else call
