"""Leases of client-side calls: folding their facts, what may be claimed, and what follows when a lease expires."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from weftline import prompts
from weftline.kernel.endings import closed
from weftline.kernel.lease import CallClaimed, CallUnclaimed, Lease, LeaseRule
from weftline.kernel.questions import earliest_deadline, without_question
from weftline.kernel.state import Call, New, Question, State

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
