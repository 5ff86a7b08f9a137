"""`decide`: what a run needs next, from its state alone. `is_outstanding`: whether a running command still matters.

The calls of a turn come first: which begin, which are answered in place of their tool, and what follows them.
"""

from __future__ import annotations

from itertools import islice
from typing import assert_never

from msgspec.structs import replace

from weftline import prompts
from weftline.kernel import budgeting, compaction, policies, questions, seating, turns
from weftline.kernel.batch import Batch
from weftline.kernel.calls import next_waiting
from weftline.kernel.endings import ask_person, await_closed, blocked, closed, end, parent_id, result_of_answer, settled
from weftline.kernel.entries import KNOWN_RULES, CallOpened, CallStarted, LoopDetected, ResultsOverBudget
from weftline.kernel.questions import earliest_deadline, is_overdue
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
from weftline.kernel.turns import admit, answered, ask_model, force_final, is_over, repeats_doubt, tools

MAX_CONSULTED = 64
"""How many questions the agent's code is asked at once, unless more calls may run at once."""
_NOBODY_TO_ASK = "The run asks a person, and there is nobody to answer."


def advance(s: State) -> Decision:
    batch = s.batch
    if batch.orphaned and (orphans := _orphans(s)):
        return Decision(tuple(orphans))
    if s.limits.policy is not None and not is_over(s) and (judged := policies.before_batch(s)) is not None:
        return judged
    if s.budget.refused is not None and not is_over(s) and (refused := budgeting.before_batch(s)) is not None:
        return refused
    if batch.asked and (batch.to_admit or is_over(s)) and not (s.budget.refused is not None and budgeting.waits(s)):
        return admit(s)
    if not batch.unclosed and not s.questions.open:
        return _after(s)
    if batch.ending and (overtaken := seating.rest_of_batch(s)):
        return Decision(tuple(overtaken))
    if s.questions.open and s.control.queue and (withdrawn := _withdraw_questions(s)):
        return Decision(tuple(withdrawn))
    if batch.grants and batch.grants_due <= s.now and not is_overdue(s) and (again := _ask_again(s)):
        return Decision(tuple(again))
    due_at = s.questions.due_at
    overdue = False
    if due_at is not None and due_at <= s.now:
        expired, unanswered = _expired(s), _unanswered(s)
        if expired and not s.open_children:
            return _timed_out(s, expired)
        if unanswered and s.limits.on_await_expired == "deny":
            return Decision(tuple([await_closed(s, index, "expired") for index in unanswered.values()]))
        if unanswered and not s.open_children:
            return _not_answered(s, frozenset(unanswered))
        if gone := questions.lost(s):
            return Decision(tuple(gone))
        # Acting on these may end the run, and it cannot end before its children.
        overdue = bool(expired or unanswered)
        due_at = earliest_deadline(s.questions, after=s.now if overdue else 0)
    append: list[New] = []
    start: list[Command] = []
    for index in batch.running:
        call = batch.calls[index]
        if call.child is not None:
            if call.child_ended:
                start.append(FinishChild(s.turn - 1, index))
        elif call.asked_back:
            append += result_of_answer(s, index)  # empty until the person has answered
        elif not call.lost:
            if not (batch.nested and s.may_be_cut_off(index)):
                start.append(RunTool(s.turn - 1, index, call.attempt))
        else:
            turns.tool_call(s, index, call, append, start, still=s.control.paused or overdue)
    if not s.control.paused and not overdue and (batch.next < len(batch.calls) or batch.held):
        _begin(s, append, start)
    if append:
        return Decision(tuple(append))
    if batch.gated and not s.control.paused and not overdue:
        _consult(s, start)
    if s.questions.open and not s.control.paused and not overdue:
        _consult_awaits(s, start)
        only_waiting = all(isinstance(one, RunTool) and s.is_waiting(one.index) for one in start)
        if only_waiting and s.limits.nobody_to_ask and _only_people_can_help(s):
            return end(s, "failed", code="nobody_to_ask", text=_NOBODY_TO_ASK)
    if batch.grants and not overdue:
        expires_at = batch.grants_due if batch.grants_due > s.now else batch.earliest_grant
        due_at = expires_at if not due_at else min(expires_at, due_at)
    return Decision(start=tuple(start), due_at=due_at)


def _consult(s: State, start: list[Command]) -> None:
    """Asks the gates about the calls that could begin next.

    In a sequential batch that is one server-side call at a time, once those before it have their results.
    """
    batch = s.batch
    own = len(batch.calls) - batch.nested
    found: list[int] = []
    if batch.concurrent or batch.to_offer:
        front = len(batch.calls) if batch.concurrent else _front(batch)
        most = min(_most_consulted(s), batch.gated)
        for index in range(batch.first_gated, own):
            call = batch.calls[index]
            if call.gated and (batch.concurrent or call.client is not None or index == front):
                found.append(index)
                if len(found) == most:
                    break
    elif (front := _front(batch)) < own and batch.calls[front].gated:
        found.append(front)
    if batch.nested:
        candidates = batch.next_nested(s.limits.max_concurrent_calls, s.room_for_children)
        if batch.to_offer:
            clients = [one for one in range(own, len(batch.calls)) if batch.calls[one].client is not None]
            candidates = sorted([*candidates, *clients])
        found += [index for index in candidates if batch.calls[index].gated]
    start += [Consult(s.turn - 1, index) for index in found]


def _front(batch: Batch) -> int:
    """The server-side call that begins next in a sequential batch; the number of calls if none may begin now."""
    if batch.busy:
        return len(batch.calls)
    front = batch.next
    if batch.ready == batch.gated:
        front = next_waiting(batch.calls, max(front, batch.first_gated))
    while front < len(batch.calls) and batch.calls[front].awaiting:  # those after it do not wait for a person
        front = next_waiting(batch.calls, front + 1)
    return front


def _most_consulted(s: State) -> int:
    """Returns how many questions the agent's code is asked at once. In a batch of a thousand calls it is not asked
    about all, so that neither a decision nor an iteration of the event loop takes long.
    """
    return max(MAX_CONSULTED, s.limits.max_concurrent_calls)


def _consult_awaits(s: State, start: list[Command]) -> None:
    """Asks the agent's own code about awaits that it has not seen yet."""
    if s.limits.await_gate and s.questions.awaits > s.questions.passed:
        unseen = ((id, one) for id, one in s.questions.open.items() if one.kind != "call" and not one.passed)
        start += [ConsultAwait(s.turn - 1, one.index, id) for id, one in islice(unseen, _most_consulted(s))]


def _only_people_can_help(s: State) -> bool:
    return not s.open_children and s.questions.awaits == len(s.questions.open)


def _ask_again(s: State) -> list[New]:
    """Asks again about calls that did not begin before their approval expired.

    A call that is already announced is answered instead, and its child run is not created.
    """
    append: list[New] = []
    for index, call in enumerate(s.batch.calls):
        if call.grant is not None and call.grant.expires_at <= s.now:
            if call.asks is not None and call.stage == "asked":
                append.append(ask_person(s, index, call.asks.kind, call.asks.timeout_us))
            elif call.stage == "opened":
                append.append(closed(s, index, "skipped", prompts.people.APPROVAL_LAPSED))
            else:
                append.append(ask_person(s, index, "doubt"))
    return append


def _withdraw_questions(s: State) -> list[New]:
    """Withdraws questions of tools and requests for missing input if a steering message has arrived in the meantime."""
    append: list[New] = []
    idle = all(s.batch.calls[index].asked_back or s.is_waiting(index) for index in s.batch.running)
    if idle and not s.control.paused and _is_steered(s):
        for index, call in enumerate(s.batch.calls):
            if call.awaiting and call.stage == "closed":
                append.append(await_closed(s, index, "withdrawn"))
            elif call.awaiting and call.asked_back:
                append += [await_closed(s, index, "withdrawn"), closed(s, index, "skipped", prompts.calls.SKIPPED)]
    return append


def _begin(s: State, append: list[New], start: list[Command]) -> None:
    """Begins as many waiting calls as may run now; in a sequential batch, a steering message skips them instead.

    Calls that a person is asked about are passed over, and so are child runs beyond the limit. They begin once they are
    approved, another child has ended, and nothing else is in the way.
    """
    batch, room = s.batch, s.room_for_children
    calls, index = batch.own, batch.next
    if batch.concurrent:
        free = s.limits.max_concurrent_calls - batch.busy
    else:
        free = 0 if batch.busy else 1
        if free and s.control.queue and _is_steered(s):
            _skip(s, append)
            return
    free = min(free, batch.ready) if batch.ready > batch.gated else 0  # the others wait for a person
    while free > 0 and index < len(calls):
        call = calls[index]
        if not call.awaiting and (call.child is None or room > 0):
            _begin_one(s, index, append, start)
            free -= 1
            room -= call.child is not None
        index = next_waiting(calls, index + 1)
    if batch.nested:
        for one in batch.next_nested(s.limits.max_concurrent_calls, room):
            _begin_one(s, one, append, start)
    if batch.held and not append and not start and _is_steered(s) and all(map(s.is_waiting, batch.running)):
        _skip(s, append)  # a steering message does not wait for an approval


def _begin_one(s: State, index: int, append: list[New], start: list[Command]) -> None:
    call = s.batch.calls[index]
    if call.held:
        append += _approved(s, index, call)
    elif call.child is not None and not call.gated:
        start.append(StartChild(s.turn - 1, index))
    elif not call.gated:
        append.append(New(CallStarted(s.turn - 1, index, 1)))


def _orphans(s: State) -> list[New]:
    """Answers calls whose parent ended before they began. Calls that have begun run to their end."""
    append: list[New] = []
    for index in range(s.batch.first_nested, len(s.batch.calls)):
        call = s.batch.calls[index]
        if call.parent is None or s.batch.calls[call.parent].stage != "closed":
            continue
        if call.awaiting and call.stage == "asked":
            append.append(await_closed(s, index, "withdrawn"))
        if call.stage == "asked":
            append += result_of_answer(s, index) or blocked(s, index, "not_run", prompts.code.PARENT_ENDED)
        elif call.stage == "opened":
            append.append(closed(s, index, "skipped", prompts.code.PARENT_ENDED))
    return append


def _skip(s: State, append: list[New]) -> None:
    """Answers the calls that have not begun, and those that await approval, in place of their tools."""
    for index, call in enumerate(s.batch.calls):
        if call.awaiting and call.stage == "asked":
            append.append(await_closed(s, index, "withdrawn"))
        if call.held or (call.gated and call.client is None):
            append += blocked(s, index, "not_run", prompts.calls.SKIPPED)
        elif call.stage == "opened" and call.client is None:
            append.append(closed(s, index, "skipped", prompts.calls.SKIPPED))


def _approved(s: State, index: int, call: Call) -> tuple[New, ...]:
    """Announces a call that a person has approved, and begins it in the same append."""
    if s.guards.doubts and (why := repeats_doubt(s, call)):
        return blocked(s, index, "repeat_of_doubt", why)
    parent = parent_id(s, call)
    opened = New(CallOpened(s.turn - 1, index, call.id, call.name, call.digest, call.effect, parent=parent))
    return (opened,) if call.child is not None else (opened, New(CallStarted(s.turn - 1, index, 1)))


def _is_steered(s: State) -> bool:
    return any(message.mode == "steer" for message in s.control.queue)


def _after(s: State) -> Decision:
    """Decides what follows once every call has its result."""
    for call in s.batch.own:
        if call.terminal and call.how == "returned":
            return end(s, "succeeded", reason=s.policy.reached, call=call.id)
    if s.seats is not None and (over := seating.after_batch(s)) is not None:
        return over
    if s.batch.lacking is not None:
        match policies.lacks_something(s):
            case "finalize":
                return Decision((force_final("tool_failure"),))
            case "await_clarification":
                return Decision((ask_person(s, s.batch.lacking, "clarification"),))
            case _:
                pass
    limits, streak = s.limits, s.guards.streak
    budget, size = limits.tool_output_budget_bytes, s.batch.bytes
    if budget is not None and size > budget and not s.guards.final:
        return Decision(
            (New(ResultsOverBudget(s.turn - 1, size, budget), prompts.turns.results_over_budget(size, budget)),)
        )
    if s.policy.reached or s.guards.given_up or s.budget.refused is not None:
        return ask_model(s)
    if limits.loop_soft and not s.guards.final and streak.same_results >= limits.loop_soft:
        if streak.same_results >= limits.loop_hard:
            found = LoopDetected(streak.same_results, True, tools(s), "results")
            return Decision((New(found), force_final("loop_detected")))
        if not streak.reported and streak.same_results == limits.loop_soft:
            found = LoopDetected(streak.same_results, False, tools(s), "results")
            return Decision((New(found, prompts.turns.repeating_results(streak.same_results)),))
    return ask_model(s)


def _expired(s: State) -> list[int]:
    """The indexes of the client-side calls that were not answered in time."""
    return [
        question.index
        for question in s.questions.open.values()
        if question.kind == "call" and question.deadline_at is not None and question.deadline_at <= s.now
    ]


def _unanswered(s: State) -> dict[str, int]:
    """The awaits that were not answered in time, with the indexes of their calls."""
    return {
        id: question.index
        for id, question in s.questions.open.items()
        if question.kind != "call" and question.deadline_at is not None and question.deadline_at <= s.now
    }


def _not_answered(s: State, unanswered: frozenset[str]) -> Decision:
    text = "Nobody answered in time what the run asked."
    return end(s, "failed", code="await_expired", text=text, expired=unanswered)


def _timed_out(s: State, expired: list[int]) -> Decision:
    closes = tuple([closed(s, index, "timeout", prompts.calls.LOCAL_TIMEOUT) for index in expired])
    if s.limits.on_local_timeout == "report":
        return Decision(closes)
    ended = end(s, "failed", code="local_timeout", text=prompts.calls.LOCAL_TIMEOUT, skip=frozenset(expired))
    return Decision((*closes, *ended.append))


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
    return Decision(start=(CallModel(s.turn, attempt.number, s.closing, attempt.choice),))


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
