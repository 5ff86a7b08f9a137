"""Decisions on the model: when to ask it, what follows from its answer, and what becomes of lost work.

Of the calls that it asks for, which may begin, and what those are answered that may not.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from weftline import prompts
from weftline.kernel import budgeting, compaction, policies, seating
from weftline.kernel.calls import asks_about_doubt, repetitions
from weftline.kernel.endings import ask_person, blocked, closed, end, parent_id, result_of_answer, settled
from weftline.kernel.entries import (
    AttemptStarted,
    BudgetExceeded,
    CallOpened,
    CallStarted,
    FinalForced,
    FinalReason,
    LoopDetected,
    MessagesTaken,
    ModelRef,
    OutputRejected,
)
from weftline.kernel.policy import CapReached
from weftline.kernel.state import Call, CheckOutput, Command, Decision, New, Reconcile, State


def model_call(s: State) -> Decision:
    return Decision((New(settled(s, "abandoned")),))


def tool_call(s: State, index: int, call: Call, append: list[New], start: list[Command], *, still: bool) -> None:
    """Decides about a lost call. With `still`, nothing begins for now, because the run is paused or about to end."""
    if call.awaiting:
        return  # a person is asked about it
    if results := result_of_answer(s, index):
        append += results
    elif call.grant is not None:  # a person wants it executed again
        if not still:
            append.append(_again(s, index, call))
    elif call.effect == "once":
        if asks_about_doubt(s, call):
            append.append(ask_person(s, index, "doubt"))
        else:
            append.append(closed(s, index, "in_doubt", prompts.calls.in_doubt(call.name)))
    elif still:
        return
    elif call.effect == "reconcile":
        start.append(Reconcile(s.turn - 1, index, call.attempt))
    else:  # read, idempotent
        append.append(_again(s, index, call))


def _again(s: State, index: int, call: Call) -> New:
    return New(CallStarted(s.turn - 1, index, call.attempt + 1))


_NOTHING = Decision()


def ask_model(s: State) -> Decision:
    if s.seats is not None and (first := seating.before_request(s)) is not None:
        return first
    attempt = s.attempt
    choice = attempt.choice
    if attempt.failure and (attempt.failure_final or attempt.failures > s.limits.max_retries):
        if not _is_last(s) and (shorter := compaction.after_overflow(s)) is not None:
            return shorter
        if choice >= s.fallbacks:
            return end(s, "failed", code=attempt.failure, reason=s.guards.final)
        choice += 1
    if s.control.paused:
        return _NOTHING
    if s.budget.refused is not None and (stopped := budgeting.stopped(s)) is not None:
        return stopped
    if not s.guards.final and (cap := _reached(s)) is not None:
        return Decision((_final_forced(s, cap),))
    if choice == attempt.choice and attempt.retry_at is not None and attempt.retry_at > s.now:
        return Decision(due_at=attempt.retry_at)
    if s.limits.compaction is not None and not _is_last(s):
        first = compaction.before_request(s)
        if first is not None:
            return first
    final = s.closing
    cause = (attempt.failure or "abandoned") if attempt.number else ""
    started = New(AttemptStarted(s.turn, attempt.number + 1, ModelRef(), final=final, cause=cause, choice=choice))
    if s.control.queue and not final:
        steering = _queued(s, "steer")
        if steering:
            return Decision((New(MessagesTaken(steering)), started))
    return Decision((started,))


def answered(s: State) -> Decision:
    """Decides what follows a turn without calls."""
    if s.answer.finish == "max_tokens":
        return truncated(s)
    if s.answer.finish == "pause_turn" and s.turn <= s.limits.max_tool_turns:
        return ask_model(s)  # the provider stopped in the middle of its own tools and must be called again
    if s.guards.final:
        return final_answer(s)
    if s.seats is not None and (s.seats.stopped or s.closing):
        return seating.side_over(s)
    if s.answer.invalid:
        if s.answer.rejections >= s.limits.output_retries:
            return end(s, "failed", code="invalid_output")
        return Decision((New(OutputRejected(s.turn - 1)),))
    if s.control.queue:
        # A follow-up waits until there are no more steering messages.
        return Decision((New(MessagesTaken(_queued(s, "steer") or _queued(s, "follow_up"))),))
    if s.limits.check_output and not s.answer.accepted:
        return Decision(start=(CheckOutput(s.turn - 1),))
    return end(s, "succeeded") if s.seats is None else seating.answered(s)


def _reached(s: State) -> FinalReason | None:
    """The limit that makes the next turn the final one. Time may also run out while a turn is being retried."""
    limits = s.limits
    if s.budget.refused is not None:
        return "budget"
    if limits.policy is not None and (cap := policies.reached(s)) is not None:
        return cap
    if s.guards.given_up:
        return "tool_failure"
    if s.attempt.number:
        return None
    if limits.max_turns is not None and s.turn >= limits.max_turns:
        return "max_turns"
    if limits.max_cost_nusd is not None and s.turn and s.totals.cost_nusd >= limits.max_cost_nusd:
        return "max_cost"
    if seating.is_last_side_turn(s):
        return "max_session_turns"
    if seating.goes_round(s):
        return "loop_detected"
    return None


def _is_last(s: State) -> bool:
    """Returns True if only the final request is left: there is no more time, or no more budget."""
    return policies.is_late(s) or s.budget.refused is not None


def _final_forced(s: State, cap: FinalReason) -> New:
    refused = s.budget.refused if cap == "budget" else None
    head = FinalForced(cap) if refused is None else FinalForced(cap, refused.level, refused.unit)
    return New(head, prompts.turns.FINAL_TURN[cap])


def truncated(s: State) -> Decision:
    return end(s, "failed", code="truncation", reason=s.guards.final)


def final_answer(s: State) -> Decision:
    """Decides what follows the forced final turn: its text is the answer, whatever calls it contains."""
    final = s.guards.final
    if s.answer.has_text and s.answer.invalid:
        return end(s, "failed", code="invalid_output", reason=final)
    if s.answer.has_text and s.limits.check_output and not s.answer.accepted:
        return Decision(start=(CheckOutput(s.turn - 1),))
    if s.answer.has_text:
        return end(s, "succeeded", reason=final, closing=prompts.calls.NO_MORE_TOOLS)
    return end(
        s,
        "failed",
        code=final,
        reason=final,
        text=f"The model gave no final answer after the run was brought to its end ({final}).",
        closing=prompts.calls.NO_MORE_TOOLS,
    )


def _queued(s: State, mode: str) -> tuple[str, ...]:
    return tuple([message.id for message in s.control.queue if message.mode == mode])


def admit(s: State) -> Decision:
    """Decides on every call of a new turn at once: announces those that may begin, and answers the others here."""
    if s.answer.finish == "max_tokens":
        return truncated(s)
    if s.guards.final:
        return final_answer(s)
    if s.closing:
        return _out_of_tools(s)
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
    if s.answer.finish == "max_tokens" or s.closing or s.guards.tool_turns > s.limits.max_tool_turns:
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


def _out_of_tools(s: State) -> Decision:
    """Answers the calls of a seat whose side turn is over."""
    append: list[New] = []
    for index, call in enumerate(s.batch.calls):
        if call.stage == "asked":
            append += blocked(s, index, "not_run", prompts.calls.NO_MORE_TOOLS)
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
