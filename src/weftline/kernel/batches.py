"""Decisions on the calls of a turn: which are admitted, which begin, which are answered in place of their tool."""

from __future__ import annotations

from typing import Literal

from weftline import prompts
from weftline.kernel import guards
from weftline.kernel.calls import earliest_deadline, next_waiting
from weftline.kernel.endings import blocked, closed, end
from weftline.kernel.entries import (
    BudgetExceeded,
    CallOpened,
    CallStarted,
    FinalForced,
    FinalReason,
    LoopDetected,
    ResultsOverBudget,
)
from weftline.kernel.state import (
    Call,
    Command,
    Consult,
    Decision,
    FinishChild,
    New,
    Reconcile,
    RunTool,
    StartChild,
    State,
)
from weftline.kernel.turns import ask_model, final_answer, truncated


def carry_on(s: State) -> Decision:
    batch = s.batch
    if batch.asked and (batch.asked > batch.gated or _is_over(s)):
        return _admit(s)
    if not batch.unclosed:
        return _after(s)
    due_at = s.questions.due_at
    overdue = False
    if due_at is not None and due_at <= s.now:
        expired = _expired(s)
        if expired and not s.open_children:
            return _timed_out(s, expired)
        overdue = bool(expired)  # what follows may end the run, which it does not do before its children
        due_at = None if overdue else earliest_deadline(s.questions)
    append: list[New] = []
    start: list[Command] = []
    for index in batch.running:
        call = batch.calls[index]
        if call.child is not None:
            if call.child_ended:
                start.append(FinishChild(s.turn - 1, index))
        elif not call.lost:
            start.append(RunTool(s.turn - 1, index, call.attempt))
        else:
            _recover(s, index, call, append, start)
    if not s.control.paused and not overdue and batch.next < len(batch.calls):
        _begin(s, append, start)
    if append:
        return Decision(tuple(append))
    if batch.gated and not s.control.paused and not overdue:
        _consult(s, start)
    return Decision(start=tuple(start), due_at=due_at)


def _consult(s: State, start: list[Command]) -> None:
    """Asks the gates about the calls that could begin next.

    In a sequential batch that is one server-side call at a time, once those before it have their results.
    """
    batch = s.batch
    for index, call in enumerate(batch.calls):
        if call.gated and (batch.concurrent or call.client is not None or (index == batch.next and not batch.running)):
            start.append(Consult(s.turn - 1, index))


def _recover(s: State, index: int, call: Call, append: list[New], start: list[Command]) -> None:
    """A call begun before a crash: its effect says what may be done about it."""
    if call.effect == "once":
        append.append(closed(s, index, "in_doubt", prompts.in_doubt(call.name)))
    elif s.control.paused:
        pass
    elif call.effect == "reconcile":
        start.append(Reconcile(s.turn - 1, index, call.attempt))
    else:
        append.append(New(CallStarted(s.turn - 1, index, call.attempt + 1)))


def _begin(s: State, append: list[New], start: list[Command]) -> None:
    """Begins as many waiting calls as may run now; in a sequential batch, steering skips them instead."""
    batch = s.batch
    calls, index = batch.calls, batch.next
    if batch.concurrent:
        free = s.limits.max_concurrent_calls - len(batch.running)
    else:
        free = 0 if batch.running else 1
        if free and _is_steered(s):
            while index < len(calls):
                if calls[index].gated:
                    append += blocked(s, index, "not_run", prompts.SKIPPED)
                else:
                    append.append(closed(s, index, "skipped", prompts.SKIPPED))
                index = next_waiting(calls, index + 1)
            return
    while free > 0 and index < len(calls):
        if calls[index].child is not None and not calls[index].gated:
            start.append(StartChild(s.turn - 1, index))
        elif not calls[index].gated:
            append.append(New(CallStarted(s.turn - 1, index, 1)))
        free -= 1
        index = next_waiting(calls, index + 1)


def _is_steered(s: State) -> bool:
    return bool(s.control.queue) and any(message.mode == "steer" for message in s.control.queue)


def _admit(s: State) -> Decision:
    """Decides on every call of a new turn at once: which are announced and may begin, and which are answered here."""
    if s.answer.finish == "max_tokens":
        return truncated(s)
    if s.guards.final:
        return final_answer(s)
    if s.guards.tool_turns > s.limits.max_tool_turns:
        return _over_max_turns(s)
    count, by = guards.repetitions(s.guards.streak)
    if s.limits.loop_soft and count >= s.limits.loop_soft:
        return _looping(s, count, by)
    budgets = _Budgets(s)
    append: list[New] = []
    for index, call in enumerate(s.batch.calls):
        if call.stage == "asked" and not call.gated:
            append += _admission(s, index, call, budgets)
            if call.over is not None:
                append.append(New(BudgetExceeded(call.name, call.over.max_calls, call.over.call_index)))
    return Decision(tuple(append))


def _is_over(s: State) -> bool:
    """Whether calls that the gates have yet to decide on are answered without them: no call of the turn can begin."""
    if s.answer.finish == "max_tokens" or s.guards.final or s.guards.tool_turns > s.limits.max_tool_turns:
        return True
    return bool(s.limits.loop_soft) and guards.repetitions(s.guards.streak)[0] >= s.limits.loop_soft


class _Budgets:
    """How much of the run's budgets is used, counting calls that are not folded yet."""

    def __init__(self, s: State) -> None:
        self.limits = s.limits.tool_budgets
        self.used = {tool: use.used for tool, use in s.guards.budgets.items()}
        self.blocked = {tool: use.blocked for tool, use in s.guards.budgets.items()}
        self.children = sum([call.child is not None and call.stage in ("opened", "started") for call in s.batch.calls])

    def exceeded(self, tool: str) -> BudgetExceeded | None:
        """The fact about a call of `tool` that is over its budget."""
        max_calls, used = self.limits.get(tool), self.used.get(tool, 0)
        if max_calls is None or used < max_calls:
            return None
        self.blocked[tool] = self.blocked.get(tool, 0) + 1
        return BudgetExceeded(tool, max_calls, used + self.blocked[tool])

    def count(self, tool: str) -> None:
        if tool in self.limits:
            self.used[tool] = self.used.get(tool, 0) + 1


def _admission(s: State, index: int, call: Call, budgets: _Budgets) -> tuple[New, ...]:
    name = call.name
    if call.verdict == "blocked" and not call.yields:
        return blocked(s, index, "blocked", "")  # the text for the model is stored with the gates' decision
    exceeded = None if call.verdict == "answered" and not call.yields else budgets.exceeded(name)
    if exceeded is not None:
        return *blocked(s, index, "budget", prompts.budget_spent(name, exceeded.max_calls)), New(exceeded)
    if call.verdict == "ok" and s.guards.doubts and (why := _repeats_doubt(s, call)):
        return blocked(s, index, "repeat_of_doubt", why)
    if call.verdict == "blocked":
        return blocked(s, index, "blocked", "")
    if call.verdict == "ok" and call.child is not None:
        if why := _refused_child(s, budgets.children):
            return blocked(s, index, "blocked", why)
        budgets.children += 1
    budgets.count(name)
    if call.verdict == "answered":
        return blocked(s, index, "answered", "")
    if call.verdict == "unknown":
        return blocked(s, index, "unknown", prompts.unknown_tool(name))
    if call.verdict == "invalid":
        return blocked(s, index, "invalid", "")  # the text for the model is stored with the turn
    timeout_us = None if call.client is None else s.limits.local_timeout_us
    return (New(CallOpened(s.turn - 1, index, call.id, name, call.digest, call.effect, call.client, timeout_us)),)


def _refused_child(s: State, open_children: int) -> str:
    """What the model reads if there may not be one more child run; "" if there may."""
    if s.depth >= s.limits.max_depth:
        return prompts.too_deep(s.limits.max_depth)
    if s.batch.concurrent and open_children >= s.limits.max_children:
        return prompts.too_many_children(s.limits.max_children)
    return ""


def _repeats_doubt(s: State, call: Call) -> str:
    """What the model reads if the call may already have taken effect; "" if not."""
    if s.limits.in_doubt_followup == "allow":
        return ""
    if call.name in s.guards.doubtful_tools:
        return prompts.tool_in_doubt(call.name)
    if any(doubt.tool == call.name and doubt.digest == call.digest for doubt in s.guards.doubts):
        return prompts.repeat_of_doubt(call.name)
    return ""


def _looping(s: State, count: int, by: Literal["calls", "cycle"]) -> Decision:
    append: list[New] = []
    for index, call in enumerate(s.batch.calls):
        if call.stage == "asked":
            append += blocked(s, index, "loop", prompts.repeated_call(call.name))
    if count >= s.limits.loop_hard:
        append.append(New(LoopDetected(count, True, _tools(s), by)))
        append.append(_force_final("loop_detected"))
    elif not s.guards.streak.reported:
        append.append(New(LoopDetected(count, False, _tools(s), by), prompts.repeating_calls(count)))
    return Decision(tuple(append))


def _over_max_turns(s: State) -> Decision:
    if s.limits.on_max_tool_turns == "error":
        return end(
            s,
            "failed",
            code="max_tool_turns",
            reason="max_tool_turns",
            text=f"The run reached its limit of {s.limits.max_tool_turns} tool turns.",
            closing=prompts.NO_MORE_TURNS,
        )
    append: list[New] = []
    for index, call in enumerate(s.batch.calls):
        if call.stage == "asked":
            append += blocked(s, index, "not_run", prompts.NO_MORE_TURNS)
    append.append(_force_final("max_tool_turns"))
    return Decision(tuple(append))


def _after(s: State) -> Decision:
    """Every call has its result."""
    limits, streak = s.limits, s.guards.streak
    budget, size = limits.tool_output_budget_bytes, s.batch.bytes
    if budget is not None and size > budget and not s.guards.final:
        return Decision((New(ResultsOverBudget(s.turn - 1, size, budget), prompts.results_over_budget(size, budget)),))
    if limits.loop_soft and not s.guards.final and streak.same_results >= limits.loop_soft:
        if streak.same_results >= limits.loop_hard:
            found = LoopDetected(streak.same_results, True, _tools(s), "results")
            return Decision((New(found), _force_final("loop_detected")))
        if not streak.reported and streak.same_results == limits.loop_soft:
            found = LoopDetected(streak.same_results, False, _tools(s), "results")
            return Decision((New(found, prompts.repeating_results(streak.same_results)),))
    return ask_model(s)


def _expired(s: State) -> list[int]:
    """The indexes of the calls whose answer did not come in time."""
    return [
        question.index
        for question in s.questions.open.values()
        if question.deadline_at is not None and question.deadline_at <= s.now
    ]


def _timed_out(s: State, expired: list[int]) -> Decision:
    closes = tuple([closed(s, index, "timeout", prompts.LOCAL_TIMEOUT) for index in expired])
    if s.limits.on_local_timeout == "report":
        return Decision(closes)
    ended = end(s, "failed", code="local_timeout", text=prompts.LOCAL_TIMEOUT, skip=frozenset(expired))
    return Decision((*closes, *ended.append))


def _force_final(reason: FinalReason) -> New:
    return New(FinalForced(reason), prompts.FINAL_TURN[reason])


def _tools(s: State) -> tuple[str, ...]:
    return tuple(dict.fromkeys([call.name for call in s.batch.calls]))
