"""The part of the fold that handles questions to someone outside: people, and clients with their calls and leases."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from weftline import prompts
from weftline.kernel.control import OF_RUN, CallClaimed, CallUnclaimed, Lease, LeaseRule
from weftline.kernel.endings import closed
from weftline.kernel.entries import AwaitClosed, AwaitOpened
from weftline.kernel.state import Budget, Call, Grant, New, Question, Questions, State


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
    batch = s.batch.with_call(head.index, asked, ready=s.batch.ready - (call.stage == "asked"))
    if head.kind == "clarification":
        batch = replace(batch, lacking=None)
    elif not batch.to_admit:
        batch = replace(batch, undecided=len(batch.calls))
    return replace(
        s,
        version=s.version + 1,
        batch=batch,
        questions=with_question(questions, head.id, Question(head.index, deadline_at, head.kind, asked_at=at)),
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
        questions=with_question(s.questions, head.id, question),
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
        batch = batch.with_call(head.index, call, ready=batch.ready + 1, undecided=min(batch.undecided, head.index))
    else:
        batch = batch.with_call(head.index, call)
    return replace(
        s,
        version=s.version + 1,
        batch=batch,
        questions=without_question(s.questions, head.id),
    )


def with_question(questions: Questions, id: str, question: Question) -> Questions:
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


def earliest_deadline(questions: Questions, *, after: int = 0) -> int | None:
    earliest: int | None = None
    for question in questions.open.values():
        lease = question.lease
        ends = None if lease is None or lease.lost else lease.until
        for at in (question.deadline_at, ends):
            if at is not None and at > after and (earliest is None or at < earliest):
                earliest = at
    return earliest


def is_overdue(s: State) -> bool:
    """Returns True if a deadline has passed and not been acted on. Nothing begins until then, because the run may
    end.
    """
    due_at = s.questions.due_at
    if due_at is None or due_at > s.now:
        return False
    return any(one.deadline_at is not None and one.deadline_at <= s.now for one in s.questions.open.values())


_PLAIN = LeaseRule()


def claimed(s: State, head: CallClaimed, at: int) -> State | None:
    """The state after the fact, or None if the fact contradicts the state."""
    question = _offered(s, head)
    if question is None or not claimable(question, head.token, renewed=head.renewed):
        return None
    return _leased(s, head.id, question, Lease(head.token, at + head.lease_us, head.lease_us, head.by))


def unclaimed(s: State, head: CallUnclaimed, at: int) -> State | None:
    question = _offered(s, head)
    if question is None or question.lease is None or question.lease.lost:
        return None
    call = s.batch.calls[head.index]
    if head.fallback:
        return _fall_back(s, head, call)
    s = replace(s, batch=s.batch.with_call(head.index, replace(call, attempt=head.attempt)))
    kept = replace(question.lease, lost=True) if head.cause == "lost" else None
    return _leased(s, head.id, question, kept)


def _fall_back(s: State, head: CallUnclaimed, call: Call) -> State:
    """Turns it into a server-side call. It runs alone, since its tool may not allow concurrency."""
    batch = s.batch
    taken = replace(call, client=None, fallback=head.fallback, attempt=0, concurrent=False)
    return replace(
        s,
        version=s.version + 1,
        batch=batch.with_call(
            head.index, taken, concurrent=False, next=min(batch.next, head.index), ready=batch.ready + 1
        ),
        questions=without_question(s.questions, head.id),
    )


def _leased(s: State, id: str, question: Question, lease: Lease | None) -> State:
    before, due_at = question.lease, s.questions.due_at
    questions = replace(s.questions, open=s.questions.open | {id: replace(question, lease=lease)})
    if due_at is not None and due_at > s.now and before is not None and before.until == due_at:
        due_at = earliest_deadline(questions)
    elif lease is not None and not lease.lost and (due_at is None or lease.until < due_at):
        due_at = lease.until
    return replace(s, version=s.version + 1, questions=replace(questions, due_at=due_at))


def _offered(s: State, head: CallClaimed | CallUnclaimed) -> Question | None:
    question = s.questions.open.get(head.id)
    fits = question is not None and question.kind == "call" and question.index == head.index
    return question if fits and head.turn == s.turn - 1 else None


def claimable(question: Question, token: str, *, renewed: bool = False) -> bool:
    """Returns True if a client with this token may claim the call; with `renewed`, only if it already holds the
    lease.
    """
    lease = question.lease
    if renewed:
        return lease is not None and lease.token == token
    return lease is None or lease.lost or lease.token == token


def answerable(question: Question, token: str) -> bool:
    """Returns True if a client with this token, or without one (""), may answer the call."""
    lease = question.lease
    if token:
        return lease is not None and lease.token == token
    return lease is None or lease.lost


def accepts(s: State, head: CallClaimed | CallUnclaimed) -> bool:
    """Returns True if a client's claim, heartbeat or release may be appended."""
    question = _offered(s, head)
    if question is None or s.control.cancel:
        return False
    if isinstance(head, CallClaimed):
        return claimable(question, head.token, renewed=head.renewed)
    released = head.cause == "released" and not head.fallback
    return released and question.lease is not None and not question.lease.lost


def lost(s: State) -> list[New]:
    """Returns the entries for calls whose lease has expired."""
    append: list[New] = []
    rule = s.limits.leases or _PLAIN
    for question in s.questions.open.values():
        lease = question.lease
        if lease is None or lease.lost or lease.until > s.now:
            continue
        call = s.batch.calls[question.index]
        if call.effect == "once":
            append.append(closed(s, question.index, "in_doubt", prompts.calls.in_doubt(call.name)))
        elif rule.on_lost == "error":
            append.append(closed(s, question.index, "timeout", prompts.calls.client_gone(call.name)))
        else:
            fallback = rule.fallbacks.get(call.name, "") if rule.on_lost == "fallback" else ""
            append.append(New(unclaim(s, question, "lost", fallback=fallback)))
    return append


def unclaim(s: State, question: Question, cause: Literal["released", "lost"], *, fallback: str = "") -> CallUnclaimed:
    """The fact that ends a lease without a result."""
    call = s.batch.calls[question.index]
    return CallUnclaimed(
        s.turn - 1,
        question.index,
        call.id,
        call.name,
        cause,
        max(call.attempt, 1) + (not fallback),
        client=None if fallback else call.client,
        fallback=fallback,
    )
