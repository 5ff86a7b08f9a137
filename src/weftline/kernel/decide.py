"""`decide`: what a run needs next, from its state alone.

Entries come before commands: the driver commits and folds them and asks again, and starts commands only when there is
nothing left to append. All guards are below this module: loop detection, budgets, caps, deadlines, cancel, pause,
steering, doubt, and the rule that a run ends exactly once with every call answered. `turns` decides on the model,
`admission` on the calls that a turn asks for, `batches` on their course, `lost` on what an earlier process had begun,
`endings` on the last append.

A crash makes no difference here: the state is the same, except for what `run.adopted` has marked as lost.
"""

from __future__ import annotations

from msgspec.structs import replace

from weftline import prompts
from weftline.kernel import budgeting, compaction, lost, policies
from weftline.kernel.batches import advance
from weftline.kernel.endings import end, settled
from weftline.kernel.entries import KNOWN_RULES
from weftline.kernel.state import CallModel, CheckOutput, Decision, New, State
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
        decision = lost.model_call(s) if s.attempt.lost else _call_model(s)
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
