"""Decisions on the calls of a new turn: which may begin, and what those are answered that may not."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from weftline import prompts
from weftline.kernel import policies
from weftline.kernel.calls import repetitions
from weftline.kernel.endings import ask_person, blocked, end, parent_id
from weftline.kernel.entries import BudgetExceeded, CallOpened, FinalForced, FinalReason, LoopDetected
from weftline.kernel.policy import CapReached
from weftline.kernel.state import Call, Decision, New, State
from weftline.kernel.turns import final_answer, truncated


def admit(s: State) -> Decision:
    """Decides on every call of a new turn at once: announces those that may begin, and answers the others here."""
    if s.answer.finish == "max_tokens":
        return truncated(s)
    if s.guards.final:
        return final_answer(s)
    if s.guards.tool_turns > s.limits.max_tool_turns:
        return _over_max_turns(s)
    if s.limits.loop_soft:
        count, by = repetitions(s.guards.streak)
        if count >= s.limits.loop_soft:
            return _looping(s, count, by)
    batch, budgets = s.batch, _Budgets(s)
    append: list[New] = []
    left = batch.to_admit
    for index in range(batch.undecided, len(batch.calls)):
        if not left:
            break
        call = batch.calls[index]
        if call.stage == "asked" and not call.gated and not call.held:
            left -= 1
            append += _admission(s, index, call, budgets)
            if call.over is not None and not call.awaits:  # only once, even if a person is asked first
                append.append(New(BudgetExceeded(call.name, call.over.max_calls, call.over.call_index)))
    return Decision(tuple(append))


def is_over(s: State) -> bool:
    """Returns True if no call of the turn can begin, so that calls are answered without asking the gates."""
    if s.answer.finish == "max_tokens" or s.guards.final or s.guards.tool_turns > s.limits.max_tool_turns:
        return True
    return bool(s.limits.loop_soft) and repetitions(s.guards.streak)[0] >= s.limits.loop_soft


class _Budgets:
    """The used part of the run's budgets, including calls that are not folded yet."""

    def __init__(self, s: State) -> None:
        self.limits = s.limits.tool_budgets
        self.used: dict[str, int] = {}
        self.blocked: dict[str, int] = {}
        for tool, use in s.guards.budgets.items():
            self.used[tool], self.blocked[tool] = use.used, use.blocked
        self.nested = 0
        """Admitted calls that other calls asked for."""
        self._calls = s.batch.calls
        for call in s.batch.calls if s.batch.held and self.limits else ():
            if call.held:
                self.count(call.name)

    @cached_property
    def children(self) -> int:
        """The child runs that are open, or will be created."""
        calls = [call for call in self._calls if call.child is not None]
        return sum([call.held or call.stage in ("opened", "started") for call in calls])

    def exceeded(self, tool: str) -> BudgetExceeded | None:
        """The fact to append if a call of `tool` would exceed its budget, else None."""
        max_calls, used = self.limits.get(tool), self.used.get(tool, 0)
        if max_calls is None or used < max_calls:
            return None
        self.blocked[tool] = self.blocked.get(tool, 0) + 1
        return BudgetExceeded(tool, max_calls, used + self.blocked[tool])

    def count(self, tool: str) -> None:
        if tool in self.limits:
            self.used[tool] = self.used.get(tool, 0) + 1


def _admission(s: State, index: int, call: Call, budgets: _Budgets) -> tuple[New, ...]:
    name, verdict = call.name, call.verdict
    if call.parent is not None and call.grant is None:
        refused = policies.before_nested(s, call, admitted=budgets.nested)
        if isinstance(refused, CapReached):
            return New(refused), *blocked(s, index, "cap", prompts.policy.over_call_cap(refused.limit))
        if refused is not None:
            return blocked(s, index, *refused)
        budgets.nested += not call.bookkeeping
    if verdict == "blocked" and not call.yields:
        return blocked(s, index, "blocked", "")  # the text for the model is stored with the gates' decision
    if verdict == "denied":
        return blocked(s, index, "denied", "")  # the text comes from the person's answer
    if verdict == "excluded":
        return blocked(s, index, "excluded", policies.why_excluded(s, name))
    exceeded = budgets.exceeded(name) if budgets.limits and (verdict != "answered" or call.yields) else None
    if exceeded is not None:
        return *blocked(s, index, "budget", prompts.calls.budget_spent(name, exceeded.max_calls)), New(exceeded)
    if verdict == "ok" and s.guards.doubts and (why := repeats_doubt(s, call)):
        return blocked(s, index, "repeat_of_doubt", why)
    if verdict == "blocked":
        return blocked(s, index, "blocked", "")
    if verdict == "ok" and call.child is not None:
        if why := _refused_child(s, budgets.children, nested=call.parent is not None and call.concurrent):
            return blocked(s, index, "blocked", why)
        budgets.children += 1
    if budgets.limits:
        budgets.count(name)
    if verdict == "answered":
        return blocked(s, index, "answered", "")
    if verdict == "unknown":
        return blocked(s, index, "unknown", prompts.calls.unknown_tool(name))
    if verdict == "invalid":
        return blocked(s, index, "invalid", "")  # the text for the model is stored with the turn
    if call.asks is not None and call.grant is None:
        if not s.limits.interrupts_allowed:
            return blocked(s, index, "blocked", prompts.people.nobody_asked(name))
        return (ask_person(s, index, call.asks.kind, call.asks.timeout_us),)
    timeout_us = None if call.client is None else s.limits.local_timeout_us
    parent = parent_id(s, call)
    opened = CallOpened(
        s.turn - 1, index, call.id, name, call.digest, call.effect, call.client, timeout_us, parent=parent
    )
    return (New(opened),)


def _refused_child(s: State, open_children: int, *, nested: bool) -> str:
    """Returns the model's text if no further child run may be created, or "" if one may."""
    if s.depth >= s.limits.max_depth:
        return prompts.subagents.too_deep(s.limits.max_depth)
    if s.rules >= 2:
        return "" if s.limits.max_children else prompts.subagents.NO_CHILDREN
    if (s.batch.concurrent or nested) and open_children >= s.limits.max_children:
        return prompts.subagents.too_many_children(s.limits.max_children)
    return ""


def repeats_doubt(s: State, call: Call) -> str:
    """Returns the model's text if the call may already have taken effect, or "" if it cannot have."""
    if s.limits.in_doubt_followup == "allow":
        return ""
    if call.name in s.guards.doubtful_tools:
        return prompts.calls.tool_in_doubt(call.name)
    if any(doubt.tool == call.name and doubt.digest == call.digest for doubt in s.guards.doubts):
        return prompts.calls.repeat_of_doubt(call.name)
    return ""


def _looping(s: State, count: int, by: Literal["calls", "cycle"]) -> Decision:
    append: list[New] = []
    for index, call in enumerate(s.batch.calls):
        if call.stage == "asked":
            append += blocked(s, index, "loop", prompts.calls.repeated_call(call.name))
    if count >= s.limits.loop_hard:
        append.append(New(LoopDetected(count, True, tools(s), by)))
        append.append(force_final("loop_detected"))
    elif not s.guards.streak.reported:
        append.append(New(LoopDetected(count, False, tools(s), by), prompts.turns.repeating_calls(count)))
    return Decision(tuple(append))


def _over_max_turns(s: State) -> Decision:
    if s.limits.on_max_tool_turns == "error":
        return end(
            s,
            "failed",
            code="max_tool_turns",
            reason="max_tool_turns",
            text=f"The run reached its limit of {s.limits.max_tool_turns} tool turns.",
            closing=prompts.calls.NO_MORE_TURNS,
        )
    append: list[New] = []
    for index, call in enumerate(s.batch.calls):
        if call.stage == "asked":
            append += blocked(s, index, "not_run", prompts.calls.NO_MORE_TURNS)
    append.append(force_final("max_tool_turns"))
    return Decision(tuple(append))


def force_final(reason: FinalReason) -> New:
    return New(FinalForced(reason), prompts.turns.FINAL_TURN[reason])


def tools(s: State) -> tuple[str, ...]:
    return tuple(dict.fromkeys([call.name for call in s.batch.calls]))
