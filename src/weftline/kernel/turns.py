"""Decisions on the model: when to ask it, what follows from its answer, and what becomes of lost work."""

from __future__ import annotations

from weftline import prompts
from weftline.kernel import budgeting, compaction, policies
from weftline.kernel.calls import asks_about_doubt
from weftline.kernel.endings import ask_person, closed, end, result_of_answer, settled
from weftline.kernel.entries import (
    AttemptStarted,
    CallStarted,
    FinalForced,
    FinalReason,
    MessagesTaken,
    ModelRef,
    OutputRejected,
)
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
    attempt = s.attempt
    choice = attempt.choice
    if attempt.failure and (attempt.failure_final or attempt.failures > s.limits.max_retries):
        if not _is_last(s) and (shorter := compaction.after_overflow(s)) is not None:
            return shorter
        if choice >= s.limits.fallbacks:
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
    final = bool(s.guards.final)
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
    if s.answer.invalid:
        if s.answer.rejections >= s.limits.output_retries:
            return end(s, "failed", code="invalid_output")
        return Decision((New(OutputRejected(s.turn - 1)),))
    if s.control.queue:
        # A follow-up waits until there are no more steering messages.
        return Decision((New(MessagesTaken(_queued(s, "steer") or _queued(s, "follow_up"))),))
    if s.limits.check_output and not s.answer.accepted:
        return Decision(start=(CheckOutput(s.turn - 1),))
    return end(s, "succeeded")


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
