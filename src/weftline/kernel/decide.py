"""`decide`: what a run needs next, from its state alone.

Entries come before commands: the driver commits and folds them and asks again, and starts commands only when there is
nothing left to append. All guards live here: loop detection, budgets, caps, deadlines, cancel, pause, steering, doubt,
and the rule that a run ends exactly once with every call answered.
"""

from __future__ import annotations

from weftline.kernel import guards
from weftline.kernel.entries import (
    AttemptFailed,
    AttemptStarted,
    BudgetExceeded,
    CallClosed,
    CallOpened,
    CallStarted,
    FinalForced,
    FinalReason,
    How,
    LoopDetected,
    MessagesTaken,
    ModelRef,
    OutputRejected,
    RunEnded,
)
from weftline.kernel.state import Call, CallModel, Command, Decision, New, Reconcile, RunTool, State
from weftline.messages import Usage

NOTHING = Decision()


def decide(s: State) -> Decision:
    if s.ended or not s.created:
        return NOTHING
    if s.broken:
        return _end(s, "failed", code="worker_error", text="The run's log is damaged and it cannot be carried on.")
    if s.cancel:
        return _cancelled(s)
    if s.attempt_open:
        if s.attempt_lost:
            return Decision((New(_settled(s, "abandoned")),))
        return Decision(start=(CallModel(s.turn, s.attempt, bool(s.final), s.choice),))
    if s.step == "batch":
        return _batch(s)
    if s.step == "answered":
        return _answered(s)
    return _ask_model(s)


def _ask_model(s: State) -> Decision:
    choice = s.choice
    if s.failure and (s.failure_final or s.failures > s.limits.max_retries):
        if choice >= s.limits.fallbacks:
            return _end(s, "failed", code=s.failure, reason=s.final)
        choice += 1
    if s.paused:
        return NOTHING
    if choice == s.choice and s.retry_at is not None and s.retry_at > s.now:
        return Decision(due_at=s.retry_at)
    cause = (s.failure or "abandoned") if s.attempt else ""
    started = New(AttemptStarted(s.turn, s.attempt + 1, ModelRef(), final=bool(s.final), cause=cause, choice=choice))
    steering = tuple(message.id for message in s.queue if message.mode == "steer")
    if steering and not s.final:
        return Decision((New(MessagesTaken(steering)), started))
    return Decision((started,))


def _answered(s: State) -> Decision:
    if s.finish == "max_tokens":
        return _end(s, "failed", code="truncation", reason=s.final)
    if s.finish == "pause_turn" and s.turn <= s.limits.max_tool_turns:
        return _ask_model(s)  # the provider stopped in the middle of tools of its own and wants to be asked again
    if s.final:
        return _final_answer(s)
    if s.output_invalid:
        if s.output_asked_again:
            return _end(s, "failed", code="invalid_output")
        return Decision((New(OutputRejected(s.turn - 1)),))
    if s.queue:
        # A follow-up waits until no steering message is left.
        mode = "steer" if any(message.mode == "steer" for message in s.queue) else "follow_up"
        return Decision((New(MessagesTaken(tuple(message.id for message in s.queue if message.mode == mode))),))
    return _end(s, "succeeded")


def _final_answer(s: State) -> Decision:
    if s.has_text and s.output_invalid:
        return _end(s, "failed", code="invalid_output", reason=s.final)
    if s.has_text:
        return _end(s, "succeeded", reason=s.final, how="not_run", closing=guards.FINAL_TURN)
    return _end(
        s,
        "failed",
        code=s.final,
        reason=s.final,
        text=f"The model gave no final answer after the run was brought to its end ({s.final}).",
        how="not_run",
        closing=guards.FINAL_TURN,
    )


def _batch(s: State) -> Decision:
    if any(call.status == "asked" for call in s.calls):
        return _admit(s)
    if all(call.status == "closed" for call in s.calls):
        return _after_batch(s)
    expired = [call for call in s.calls if _expired(s, call)]
    if expired:
        return _timed_out(s, expired)
    turn = s.turn - 1
    append: list[New] = []
    start: list[Command] = []
    busy = any(call.status == "started" for call in s.calls)
    concurrent = all(call.concurrent for call in s.calls if call.verdict == "ok")
    steered = any(message.mode == "steer" for message in s.queue)
    for index, call in enumerate(s.calls):
        if call.client or call.status == "closed":
            continue
        if call.status == "started":
            if not call.lost:
                start.append(RunTool(turn, index, call.attempt))
            elif call.effect == "once":
                append.append(_closed(s, index, "in_doubt", guards.doubt_result(call.name)))
            elif s.paused:
                continue
            elif call.effect == "reconcile":
                start.append(Reconcile(turn, index, call.attempt))
            else:
                append.append(New(CallStarted(turn, index, call.attempt + 1)))
        elif s.paused:
            continue
        elif steered and not busy and not concurrent:
            append.append(_closed(s, index, "skipped", guards.SKIPPED))
        elif concurrent or not busy:
            append.append(New(CallStarted(turn, index, 1)))
            busy = True
    if append:
        return Decision(tuple(append))
    deadlines = [call.deadline_at for call in s.calls if call.deadline_at is not None and call.status == "opened"]
    return Decision(start=tuple(start), due_at=min(deadlines, default=None))


def _admit(s: State) -> Decision:
    """Decides on every call of a fresh turn at once: which are announced and may begin, and which are answered here."""
    if s.finish == "max_tokens":
        return _end(s, "failed", code="truncation", reason=s.final)
    if s.final:
        return _final_answer(s)
    if s.tool_turns > s.limits.max_tool_turns:
        return _over_max_turns(s)
    count, by = guards.repetitions(s.streak)
    if s.limits.loop_soft and count >= s.limits.loop_soft:
        return _looping(s, count, "cycle" if by == "cycle" else "calls")
    turn = s.turn - 1
    used = {tool: use.used for tool, use in s.budgets.items()}
    blocked = {tool: use.blocked for tool, use in s.budgets.items()}
    append: list[New] = []
    for index, call in enumerate(s.calls):
        max_calls = s.limits.tool_budgets.get(call.name)
        if max_calls is not None and used.get(call.name, 0) >= max_calls:
            blocked[call.name] = blocked.get(call.name, 0) + 1
            attempt_number = used.get(call.name, 0) + blocked[call.name]
            append += _blocked(s, index, "budget", guards.budget_result(call.name, max_calls))
            append.append(New(BudgetExceeded(call.name, max_calls, attempt_number)))
            continue
        if call.verdict == "ok" and s.limits.in_doubt_followup == "block" and _repeats_doubt(s, call):
            append += _blocked(s, index, "repeat_of_doubt", guards.repeat_of_doubt_result(call.name))
            continue
        used[call.name] = used.get(call.name, 0) + 1
        if call.verdict == "unknown":
            append += _blocked(s, index, "unknown", guards.unknown_result(call.name))
        elif call.verdict == "invalid":
            append += _blocked(s, index, "invalid", "")
        else:
            timeout_us = s.limits.local_timeout_us if call.client else None
            append.append(
                New(
                    CallOpened(
                        turn, index, call.id, call.name, call.digest, call.effect, call.client, timeout_us=timeout_us
                    )
                )
            )
    return Decision(tuple(append))


def _looping(s: State, count: int, by: str) -> Decision:
    append: list[New] = []
    for index, call in enumerate(s.calls):
        append += _blocked(s, index, "loop", guards.loop_result(call.name))
    tools = tuple(dict.fromkeys(call.name for call in s.calls))
    kind = "cycle" if by == "cycle" else "calls"
    if count >= s.limits.loop_hard:
        append.append(New(LoopDetected(count, True, tools, kind)))
        append.append(_force_final("loop_detected"))
    elif not s.streak.reported:
        append.append(New(LoopDetected(count, False, tools, kind), guards.loop_nudge(count)))
    return Decision(tuple(append))


def _over_max_turns(s: State) -> Decision:
    if s.limits.on_max_tool_turns == "error":
        return _end(
            s,
            "failed",
            code="max_tool_turns",
            reason="max_tool_turns",
            text=f"The run reached its limit of {s.limits.max_tool_turns} tool turns.",
            how="not_run",
            closing=guards.OVER_MAX_TURNS,
        )
    append: list[New] = []
    for index in range(len(s.calls)):
        append += _blocked(s, index, "not_run", guards.OVER_MAX_TURNS)
    append.append(_force_final("max_tool_turns"))
    return Decision(tuple(append))


def _after_batch(s: State) -> Decision:
    limits, streak = s.limits, s.streak
    if limits.loop_soft and not s.final and streak.same_results >= limits.loop_soft:
        tools = tuple(dict.fromkeys(call.name for call in s.calls))
        if streak.same_results >= limits.loop_hard:
            return Decision(
                (
                    New(LoopDetected(streak.same_results, True, tools, "results")),
                    _force_final("loop_detected"),
                )
            )
        if not streak.reported and streak.same_results == limits.loop_soft:
            nudge = guards.same_results_nudge(streak.same_results)
            return Decision((New(LoopDetected(streak.same_results, False, tools, "results"), nudge),))
    return _ask_model(s)


def _timed_out(s: State, expired: list[Call]) -> Decision:
    closes = tuple(
        _closed(s, index, "timeout", guards.LOCAL_TIMEOUT) for index, call in enumerate(s.calls) if call in expired
    )
    if s.limits.on_local_timeout == "report":
        return Decision(closes)
    ended = _end(s, "failed", code="local_timeout", text=guards.LOCAL_TIMEOUT, skip=frozenset(c.id for c in expired))
    return Decision((*closes, *ended.append))


def _cancelled(s: State) -> Decision:
    if s.attempt_open:
        return Decision((New(_settled(s, "cancelled")),))
    return _end(s, "cancelled", reason=s.cancel, how="cancelled", closing=guards.CANCELLED)


def _end(
    s: State,
    status: str,
    *,
    code: str = "",
    reason: str = "",
    text: str = "",
    how: How = "not_run",
    closing: str = guards.NOT_RUN,
    skip: frozenset[str] = frozenset(),
) -> Decision:
    """The last append of a run: every open call closed, then the one terminal entry."""
    append: list[New] = []
    for index, call in enumerate(s.calls):
        if call.status == "closed" or call.id in skip:
            continue
        if call.status == "asked":
            append += _blocked(s, index, how, closing)
        elif call.status == "started" and call.effect != "read":
            append.append(_closed(s, index, "in_doubt", guards.doubt_result(call.name)))
        else:
            append.append(_closed(s, index, how, closing))
    usage = s.usage
    if s.attempt_open:
        settled = _settled(s, "abandoned")
        append.append(New(settled))
        usage = usage + settled.usage
    assert status in ("succeeded", "failed", "cancelled")
    ended = RunEnded(
        status,
        code=code,
        reason=reason,
        finish=s.finish,
        usage=usage,
        cost_nusd=None if s.unpriced else s.cost_nusd,
        turns=s.attempts,
        model=s.model,
        active_us=s.active_us,
        undelivered=tuple(message.id for message in s.queue),
    )
    append.append(New(ended, text))
    return Decision(tuple(append))


def _settled(s: State, reason: str) -> AttemptFailed:
    """Closes an attempt whose outcome nobody will report, with what it may have cost."""
    assert reason in ("abandoned", "cancelled")
    return AttemptFailed(
        s.turn,
        s.attempt,
        "abandoned" if reason == "abandoned" else "cancelled",
        reason=reason,
        usage=Usage(input=s.attempt_estimate),
        estimated=True,
    )


def _blocked(s: State, index: int, how: How, text: str) -> tuple[New, New]:
    call = s.calls[index]
    opened = CallOpened(s.turn - 1, index, call.id, call.name, call.digest, call.effect, call.client, blocked=True)
    return New(opened), _closed(s, index, how, text)


def _closed(s: State, index: int, how: How, text: str) -> New:
    call = s.calls[index]
    return New(CallClosed(s.turn - 1, index, call.id, call.name, how, is_error=True, client=call.client), text)


def _force_final(reason: FinalReason) -> New:
    return New(FinalForced(reason), guards.final_instruction(reason))


def _expired(s: State, call: Call) -> bool:
    return call.status == "opened" and call.deadline_at is not None and call.deadline_at <= s.now


def _repeats_doubt(s: State, call: Call) -> bool:
    return any(doubt.tool == call.name and doubt.digest == call.digest for doubt in s.doubts)
