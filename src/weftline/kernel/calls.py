"""The part of the fold that handles calls, from the turn that asked for them to the last result.

It maintains the batch's counts and cursors, so that no fact needs a walk over all calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from weftline.failure import CORRECTABLE, Recovery, failed_as
from weftline.kernel import guards, policies
from weftline.kernel.entries import (
    EXECUTED,
    OF_RUN,
    STRICTNESS,
    AskedCall,
    AwaitClosed,
    AwaitOpened,
    CallAsked,
    CallClosed,
    CallGated,
    CallOpened,
    CallStarted,
    ChildEnded,
    ChildWaits,
    Effect,
    Limits,
)
from weftline.kernel.state import (
    Batch,
    Budget,
    BudgetUse,
    Call,
    Doubt,
    Grant,
    Guards,
    Question,
    Questions,
    State,
    Streak,
)

MAX_DOUBTS = 16
"""How many calls in doubt are remembered individually. Beyond that, a tool with a further call in doubt is blocked
entirely.
"""


def asked(wanted: Sequence[AskedCall]) -> Batch:
    """The batch of a turn that has just completed."""
    calls: list[Call] = []
    concurrent, gated, to_offer = True, 0, 0
    for one in wanted:
        calls.append(_new_call(one))
        gated += one.gated
        to_offer += one.client is not None
        if not one.concurrent and one.verdict == "ok":
            concurrent = False
    count = len(calls)
    return Batch(
        tuple(calls),
        concurrent,
        asked=count,
        gated=gated,
        unclosed=count,
        next=next_waiting(calls, 0),
        ready=count,
        to_offer=to_offer,
    )


def _new_call(one: AskedCall) -> Call:
    return Call(
        one.id,
        one.name,
        one.digest,
        one.verdict,
        one.effect,
        one.client,
        gated=one.gated,
        child="" if one.child else None,
        asks=one.asks,
        in_doubt=one.in_doubt,
        bookkeeping=one.bookkeeping,
        terminal=one.terminal,
        host=one.host,
    )


def asked_further(s: State, head: CallAsked) -> State | None:
    """The state after the fact, or None if the fact contradicts the state. The functions below return the same."""
    batch = s.batch
    if head.turn != s.turn - 1 or head.index != len(batch.calls) or not 0 <= head.parent < head.index:
        return None
    parent = batch.calls[head.parent]
    if not parent.host or parent.stage != "started":
        return None
    call = replace(
        _new_call(head.call), parent=head.parent, concurrent=head.call.concurrent, host=False, terminal=False
    )
    batch = replace(
        batch,
        calls=(*batch.calls, call),
        asked=batch.asked + 1,
        gated=batch.gated + call.gated,
        unclosed=batch.unclosed + 1,
        nested=batch.nested + 1,
        first_nested=batch.first_nested if batch.nested else head.index,
        ready=batch.ready + 1,
        to_offer=batch.to_offer + (call.client is not None),
    )
    if call.client is not None and batch.next == head.index:
        batch = replace(batch, next=head.index + 1)
    return replace(s, version=s.version + 1, batch=batch)


def lost(batch: Batch, effects: dict[str, Effect]) -> Batch:
    """The batch after an adoption: everything that was running was begun by an earlier epoch.

    The stricter of the recorded and the current effect applies; a tool that no longer exists counts as the strictest.
    """
    if not batch.running:
        return batch
    calls = list(batch.calls)
    for index in batch.running:
        call = calls[index]
        if call.child is not None or call.awaiting or call.asked_back:
            continue  # it has a run of its own, which is not lost; or a person is already asked about it
        present = effects.get(call.tool, "once")
        stricter = present if STRICTNESS[present] > STRICTNESS[call.effect] else call.effect
        calls[index] = replace(call, lost=True, effect=stricter)
    return replace(batch, calls=tuple(calls))


def gated(s: State, head: CallGated) -> State | None:
    call = _unclosed(s, head)
    if call is None or not call.gated:
        return None
    decided = replace(
        call,
        verdict=head.verdict,
        digest=head.digest,
        gated=False,
        yields=head.yields,
        over=head.over,
        asks=head.asks,
    )
    first, undecided = s.batch.first_gated, min(s.batch.undecided, head.index)
    if head.index == first:
        first = _next_gated(s.batch.calls, first + 1)
    batch = _changed(s.batch, head.index, decided, gated=s.batch.gated - 1, first_gated=first, undecided=undecided)
    return replace(s, version=s.version + 1, batch=batch)


def await_opened(s: State, head: AwaitOpened, at: int) -> State | None:
    if head.kind == "deploy" or head.kind == "budget":
        return _hold_run(s, head, at)
    call, questions = _asked_about(s, head), s.questions
    if call is None or call.awaiting or call.gated or head.id in questions.open:
        return None
    deadline_at = None if head.timeout_us is None else at + head.timeout_us
    asked = replace(call, awaiting=head.id, awaits=call.awaits + 1, grant=None)
    if call.stage == "started" and not call.lost:
        asked = replace(asked, asked_back=True)
    batch = _changed(s.batch, head.index, asked, ready=s.batch.ready - (call.stage == "asked"))
    if head.kind == "clarification":
        batch = replace(batch, lacking=None)
    elif not batch.to_admit:
        batch = replace(batch, undecided=len(batch.calls))
    return replace(
        s,
        version=s.version + 1,
        batch=batch,
        questions=_with_question(questions, head.id, Question(head.index, deadline_at, head.kind, asked_at=at)),
    )


def _asked_about(s: State, head: AwaitOpened) -> Call | None:
    """The call that this await is about, or None if a person may not be asked this at its stage."""
    if head.turn != s.turn - 1 or not 0 <= head.index < len(s.batch.calls):
        return None
    call = s.batch.calls[head.index]
    match head.kind:
        case "clarification":
            return call if s.batch.lacking == head.index and not s.batch.unclosed else None
        case "doubt":
            return call if call.stage == "started" and call.lost else None
        case "question" if call.stage == "started":
            return call if not call.lost and not call.asked_back and call.child is None else None
        case _:
            return call if call.stage == "asked" else None


def _hold_run(s: State, head: AwaitOpened, at: int) -> State | None:
    """Holds the whole run until a person has answered."""
    if s.control.held_by or head.id in s.questions.open or head.index != OF_RUN:
        return None
    question = Question(OF_RUN, kind=head.kind, asked_at=at)
    return replace(
        s,
        version=s.version + 1,
        control=replace(s.control, held_by=head.id),
        questions=_with_question(s.questions, head.id, question),
    )


def _release_run(s: State, head: AwaitClosed) -> State | None:
    """Releases a held run: a person has decided, or the answer is no longer needed. A refused deploy cancels it."""
    if head.id != s.control.held_by or head.id not in s.questions.open:
        return None
    control, asked = replace(s.control, held_by=""), s.questions.open[head.id]
    questions = without_question(s.questions, head.id)
    if asked.kind == "budget":
        return replace(s, version=s.version + 1, control=control, questions=questions, budget=_answered(s.budget, head))
    if head.outcome == "denied" and not control.cancel:
        offered = tuple([id for id, question in questions.open.items() if question.kind == "call"])
        control, questions = replace(control, cancel="deploy"), replace(questions, ignored=offered)
    return replace(s, version=s.version + 1, control=control, questions=questions)


def _answered(budget: Budget, head: AwaitClosed) -> Budget:
    """Lets the call that did not fit be tried again, or brings the run to its end."""
    refused = budget.refused
    if refused is not None:
        refused = replace(refused, outcome="final_turn") if head.outcome == "denied" else None
    return replace(budget, refused=refused, asked=budget.asked + 1)


def await_closed(s: State, head: AwaitClosed, at: int) -> State | None:
    if head.index == OF_RUN:
        return _release_run(s, head)
    question = s.questions.open.get(head.id)
    if question is None or head.turn != s.turn - 1 or question.index != head.index:
        return None
    call = s.batch.calls[head.index]
    if call.awaiting != head.id:
        return None
    call = replace(call, awaiting="")
    match head.outcome:
        case _ if question.kind == "clarification":
            pass  # the call has its result, and the answer is a message
        case "approved" if question.kind == "confirm" or question.kind == "doubt":
            grant = Grant(head.digest, at + s.limits.grant_ttl_us)
            call = replace(call, grant=grant, digest=head.digest)
        case "approved" | "answered":
            call = replace(call, verdict="answered")
        case "denied" | "expired":
            call = replace(call, verdict="denied")
        case "withdrawn":
            pass  # what takes its place is in the same append
    batch = s.batch
    if call.stage == "asked":
        batch = _changed(batch, head.index, call, ready=batch.ready + 1, undecided=min(batch.undecided, head.index))
    else:
        batch = _changed(batch, head.index, call)
    return replace(
        s,
        version=s.version + 1,
        batch=batch,
        questions=without_question(s.questions, head.id),
    )


def opened(s: State, head: CallOpened, at: int) -> State | None:
    call = _unclosed(s, head)
    if call is None or call.stage != "asked" or head.client != call.client or call.awaiting:
        return None
    if call.grant is not None and not head.blocked and call.grant.digest != head.digest:
        return None
    batch, questions, counted = s.batch, s.questions, s.guards
    if not head.blocked:
        counted = _count(counted, s.limits, call.name, used=1)
        if head.client is not None:
            if call.id in questions.open:
                return None
            deadline_at = None if head.timeout_us is None else at + head.timeout_us
            questions = _with_question(questions, call.id, Question(head.index, deadline_at))
    # A client-side call is offered by this fact, which uses up the grant.
    grant = None if head.blocked or head.client is not None else call.grant
    announced = replace(call, stage="opened", effect=head.effect, gated=False, grant=grant)
    counts = {"asked": batch.asked - 1, "gated": batch.gated - call.gated}
    if counts["asked"] == counts["gated"] + batch.held - call.held:
        counts["undecided"] = len(batch.calls)
    if head.client is not None:
        counts |= {"ready": batch.ready - 1, "to_offer": batch.to_offer - 1}
    batch = _changed(batch, head.index, announced, **counts)
    announced_in = replace(s, version=s.version + 1, batch=batch, questions=questions, guards=counted)
    return announced_in if head.blocked or s.limits.policy is None else policies.opened(announced_in, call)


def asks_about_doubt(s: State, call: Call) -> bool:
    """Whether a person is asked what became of the call if a crash interrupts it and its tool does not know."""
    return (call.in_doubt or s.limits.in_doubt) == "ask" and s.limits.interrupts_allowed


def started(s: State, head: CallStarted, at: int) -> State | None:
    call = _unclosed(s, head)
    if call is None or call.stage == "asked" or call.client is not None or head.attempt != call.attempt + 1:
        return None
    if (call.child is None) == bool(head.child) or call.child:
        return None
    batch = s.batch
    begun = replace(
        call,
        stage="started",
        attempt=head.attempt,
        lost=False,
        effect=head.effect or call.effect,
        child=head.child or None,
        grant=None,
        begun_at=at if asks_about_doubt(s, call) else 0,
    )
    running, ready = batch.running, batch.ready
    if call.stage != "started":
        ready -= 1
        running = (*running, head.index)
        if len(running) > 1 and running[-2] > head.index:
            running = tuple(sorted(running))
    batch = _changed(batch, head.index, begun, running=running, next=_cursor(batch, head.index), ready=ready)
    return replace(s, version=s.version + 1, batch=batch)


def child_ended(s: State, head: ChildEnded) -> State | None:
    call = _unclosed(s, head)
    if call is None or not call.waits_for_child:
        return None
    batch = _changed(s.batch, head.index, replace(call, child_ended=True))
    return replace(s, version=s.version + 1, batch=batch)


def child_waits(s: State, head: ChildWaits) -> State | None:
    call = _unclosed(s, head)
    if call is None or not call.waits_for_child:
        return None
    batch = _changed(s.batch, head.index, replace(call, child_waits=head.waits))
    return replace(s, version=s.version + 1, batch=batch)


def closed(s: State, head: CallClosed) -> State | None:
    call = _unclosed(s, head)
    if call is None or call.stage == "asked":
        return None
    if (call.waits_for_child or call.awaiting) and not s.broken:
        return None
    batch, questions, totals = s.batch, s.questions, s.totals
    ended = replace(call, stage="closed", how=head.how, lost=False, result=head.digest, grant=None)
    if head.is_error:
        ended = replace(ended, recovery=_recovery(head))
    running, ready = batch.running, batch.ready
    if call.stage == "started":
        running = tuple([index for index in running if index != head.index])
    elif call.client is None:
        ready -= 1
    elif call.id in questions.open:
        questions = without_question(questions, call.id)
    if head.active_us > 0:
        totals = replace(totals, active_us=totals.active_us + head.active_us)
    batch = _changed(
        batch,
        head.index,
        ended,
        unclosed=batch.unclosed - 1,
        running=running,
        next=_cursor(batch, head.index),
        bytes=batch.bytes + (max(head.size, 0) if head.size and call.parent is None else 0),
        lacking=head.index if head.hint is not None and _lacks(batch, head) else batch.lacking,
        ready=ready,
    )
    if batch.nested:
        batch = _closed_among_nested(batch, head.index, call)
    remembered = s.guards if head.how in EXECUTED else _remember(s, call, head)
    if not batch.unclosed:
        remembered = _recovered(remembered, guards.after_batch(remembered.streak, batch.own), batch.calls)
    after = replace(s, version=s.version + 1, batch=batch, questions=questions, guards=remembered, totals=totals)
    return after if s.limits.policy is None else policies.call_closed(after, call, head)


def _closed_among_nested(batch: Batch, index: int, call: Call) -> Batch:
    """The batch in which this call, which may be nested or have nested ones, has just been closed."""
    first, calls = batch.first_nested, batch.calls
    if index == first:
        while first < len(calls) and calls[first].stage == "closed":
            first += 1
        return replace(batch, first_nested=first)
    if call.host and any(one.parent == index and one.stage != "closed" for one in calls[first:]):
        return replace(batch, orphaned=True)
    return batch


def _lacks(batch: Batch, head: CallClosed) -> bool:
    """Whether this is the first call so far that failed because something is missing."""
    return head.hint == "missing_fields" and not head.parent and (batch.lacking is None or head.index < batch.lacking)


def external_id(turn: int) -> str:
    """The id under which clients answer all client-side calls of a turn together."""
    return f"external_{turn}"


def next_waiting(calls: Sequence[Call], index: int) -> int:
    """The first server-side call from `index` on that has not begun; the number of calls if there is none."""
    while index < len(calls):
        call = calls[index]
        if call.client is None and (call.stage == "opened" or call.stage == "asked"):
            break
        index += 1
    return index


def _next_gated(calls: Sequence[Call], index: int) -> int:
    """The first call from `index` on that waits for the gates; the number of calls if there is none."""
    while index < len(calls) and not calls[index].gated:
        index += 1
    return index


def earliest_deadline(questions: Questions, *, after: int = 0) -> int | None:
    earliest: int | None = None
    for question in questions.open.values():
        lease = question.lease
        ends = None if lease is None or lease.lost else lease.until
        for at in (question.deadline_at, ends):
            if at is not None and at > after and (earliest is None or at < earliest):
                earliest = at
    return earliest


def earliest_grant(batch: Batch) -> int:
    """When the first grant expires; there must be one."""
    return min([call.grant.expires_at for call in batch.calls if call.grant is not None])


def is_overdue(s: State) -> bool:
    """Whether a deadline has passed and not been acted on. Nothing begins until then, because the run may end."""
    due_at = s.questions.due_at
    if due_at is None or due_at > s.now:
        return False
    return any(one.deadline_at is not None and one.deadline_at <= s.now for one in s.questions.open.values())


OfCall: TypeAlias = (
    CallGated | AwaitOpened | AwaitClosed | CallOpened | CallStarted | ChildEnded | ChildWaits | CallClosed
)
"""The facts about one call."""


def _unclosed(s: State, head: OfCall) -> Call | None:
    calls, index = s.batch.calls, head.index
    if head.turn != s.turn - 1 or not 0 <= index < len(calls):
        return None
    call = calls[index]
    return None if call.stage == "closed" else call


def _changed(batch: Batch, index: int, call: Call, **also: Any) -> Batch:
    """The batch with one call replaced, its counts of held calls and grants updated, and `also` these changes."""
    calls = [*batch.calls]
    before, calls[index] = calls[index], call
    if before.asks is None and call.asks is None and not before.awaits and not call.awaits:
        return replace(batch, calls=tuple(calls), **also)
    held = batch.held + call.held - before.held
    grants, due = batch.grants + (call.grant is not None) - (before.grant is not None), batch.grants_due
    if call.grant is not None and call.grant is not before.grant:
        due = min(due or call.grant.expires_at, call.grant.expires_at)
    return replace(batch, calls=tuple(calls), held=held, grants=grants, grants_due=due if grants else 0, **also)


def _cursor(batch: Batch, begun: int) -> int:
    """Where the cursor is once this call has begun. It advances only past the call that it points at, so that each call
    is visited once per batch.
    """
    return next_waiting(batch.calls, begun + 1) if begun == batch.next else batch.next


def _with_question(questions: Questions, id: str, question: Question) -> Questions:
    due_at, deadline_at = questions.due_at, question.deadline_at
    if due_at is None or (deadline_at is not None and deadline_at < due_at):
        due_at = deadline_at
    awaits = questions.awaits + (question.kind != "call")
    return replace(questions, open=questions.open | {id: question}, due_at=due_at, awaits=awaits)


def without_question(questions: Questions, id: str) -> Questions:
    left = questions.open.copy()
    gone = left.pop(id)
    due_at = questions.due_at if left else None
    if gone.kind == "call":
        return replace(questions, open=left, due_at=due_at)
    awaits, passed = questions.awaits - 1, questions.passed - gone.passed
    return replace(questions, open=left, due_at=due_at, awaits=awaits, passed=passed)


def _remember(s: State, call: Call, head: CallClosed) -> Guards:
    """What the guards remember about a call that its tool did not answer."""
    match head.how:
        case "unknown" | "invalid" | "answered":
            return _count(s.guards, s.limits, call.name, used=1)
        case "skipped":
            return _count(s.guards, s.limits, call.name, used=-1)
        case "budget":
            return _count(s.guards, s.limits, call.name, blocked=1)
        case "in_doubt":
            return _doubt(s.guards, call)
        case _:
            return s.guards


def _recovery(head: CallClosed) -> Recovery | None:
    """What a failure means for the next turn. No tool is withheld unless its result asked for that."""
    return head.recovery or ("correct_call" if failed_as(head) in CORRECTABLE else None)


def _recovered(kept: Guards, streak: Streak, calls: Sequence[Call]) -> Guards:
    """Applies the failures of a finished batch to the next turn: finishing takes precedence over correcting a call,
    which takes precedence over withholding its tool.
    """
    # Failures of nested calls are left to the code that made them.
    failed = [call for call in calls if call.recovery == "finish" or (call.recovery and call.parent is None)]
    if not failed:
        return replace(kept, streak=streak, withheld=())
    correctable = {call.name for call in failed if call.recovery == "correct_call"}
    gone = [call.name for call in failed if call.recovery == "replan" and call.name not in correctable]
    given_up = kept.given_up or any(call.recovery == "finish" for call in failed)
    return replace(kept, streak=streak, withheld=tuple(dict.fromkeys(gone)), given_up=given_up)


def _doubt(kept: Guards, call: Call) -> Guards:
    if len(kept.doubts) < MAX_DOUBTS:
        return replace(kept, doubts=(*kept.doubts, Doubt(call.name, call.digest, call.id)))
    if call.name in kept.doubtful_tools:
        return kept
    return replace(kept, doubtful_tools=(*kept.doubtful_tools, call.name))


def _count(kept: Guards, limits: Limits, tool: str, *, used: int = 0, blocked: int = 0) -> Guards:
    if tool not in limits.tool_budgets:
        return kept
    before = kept.budgets.get(tool, BudgetUse())
    return replace(kept, budgets=kept.budgets | {tool: BudgetUse(before.used + used, before.blocked + blocked)})
