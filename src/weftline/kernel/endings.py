"""Endings: of a call without its tool, of an attempt without its outcome, of a run. Also how to ask a person first."""

from __future__ import annotations

from typing import Literal

from weftline import prompts
from weftline.kernel import compaction
from weftline.kernel.batch import await_id
from weftline.kernel.control import OF_RUN
from weftline.kernel.entries import (
    AttemptFailed,
    AwaitClosed,
    AwaitKind,
    AwaitOpened,
    AwaitOutcome,
    CallClosed,
    CallOpened,
    How,
    RunEnded,
)
from weftline.kernel.state import Call, Decision, New, State
from weftline.messages import Usage


def end(
    s: State,
    status: Literal["succeeded", "failed", "cancelled"],
    *,
    code: str = "",
    reason: str = "",
    text: str = "",
    how: How = "not_run",
    closing: str = prompts.calls.NOT_RUN,
    skip: frozenset[int] = frozenset(),
    expired: frozenset[str] = frozenset(),
    call: str = "",
) -> Decision:
    """The last append of a run: closes every await and every open call, then adds the one terminal entry.

    `how` and `closing` apply to calls that never began. `skip` has the indexes of calls that are closed already,
    `expired` the awaits that nobody answered in time. `call` is the terminal call whose success ended the run.
    """
    append: list[New] = []
    if s.control.held_by:
        append.append(New(AwaitClosed(s.turn, OF_RUN, s.control.held_by, "withdrawn", by="runtime")))
    for index, one in enumerate(s.batch.calls) if s.questions.open else ():
        if one.awaiting:
            append.append(await_closed(s, index, "expired" if one.awaiting in expired else "withdrawn"))
    if s.batch.unclosed:
        append += _close_all(s, how, closing, skip)
    usage = s.totals.usage
    if s.attempt.open:
        last = settled(s, "abandoned")
        append.append(New(last))
        usage = usage + last.usage
    if s.compaction.open:
        summary = compaction.settled(s, "abandoned")
        append.append(New(summary))
        usage = usage + summary.usage
    ended = RunEnded(
        status,
        code=code,
        reason=reason,
        requested_by=s.control.cancelled_by if status == "cancelled" else "",
        finish=s.answer.finish,
        usage=usage,
        # The cost of a call that is cut off here is unknown.
        cost_nusd=None if s.totals.unpriced or s.attempt.open or s.compaction.open else s.totals.cost_nusd,
        turns=s.turn + (s.attempt.number > 0),
        attempts=s.totals.attempts,
        model=s.attempt.model,
        active_us=s.totals.active_us,
        undelivered=tuple([message.id for message in s.control.queue]) if s.control.queue else (),
        call=call,
    )
    append.append(New(ended, text))
    return Decision(tuple(append))


def _close_all(s: State, how: How, closing: str, skip: frozenset[int]) -> list[New]:
    append: list[New] = []
    for index, call in enumerate(s.batch.calls):
        if call.stage == "closed" or index in skip:
            continue
        if results := result_of_answer(s, index):
            append += results
        elif call.stage == "asked":
            append += blocked(s, index, how, closing)
        elif call.stage == "started" and _may_have_happened(call):
            append.append(closed(s, index, "in_doubt", prompts.calls.in_doubt(call.name)))
        else:
            append.append(closed(s, index, how, closing))
    return append


def result_of_answer(s: State, index: int) -> tuple[New, ...]:
    """The result of a call that a person has answered or denied. It stands, however the run ends.

    Empty if there is no answer yet, or if the answer is that the call may run.
    """
    call = s.batch.calls[index]
    if call.awaiting or not call.awaits:
        return ()
    match call.verdict:
        case "answered" if call.stage == "asked":
            return blocked(s, index, "answered", "")
        case "denied" if call.stage == "asked":
            return blocked(s, index, "denied", "")
        case "answered":
            return (closed(s, index, "returned", "", is_error=False),)
        case "denied" if call.asked_back:
            return (closed(s, index, "denied", ""),)
        case "denied":
            return (closed(s, index, "in_doubt", prompts.calls.in_doubt(call.name)),)
        case _:
            return ()


def _may_have_happened(call: Call) -> bool:
    """Returns True if a call that has begun and has no result may have taken effect. A tool that asked a person has
    ended.
    """
    if call.asked_back:
        return False
    return call.effect != "read" if call.child is None else call.waits_for_child


def settled(s: State, reason: Literal["abandoned", "cancelled"]) -> AttemptFailed:
    """Closes an attempt whose outcome will never be reported, with what it may have cost."""
    return AttemptFailed(
        s.turn, s.attempt.number, reason, reason=reason, usage=Usage(input=s.attempt.estimate), estimated=True
    )


def blocked(s: State, index: int, how: How, text: str) -> tuple[New, New]:
    """Announces a call and answers it in place of its tool, in one append."""
    call = s.batch.calls[index]
    parent = parent_id(s, call)
    opened = CallOpened(
        s.turn - 1, index, call.id, call.name, call.digest, call.effect, call.client, blocked=True, parent=parent
    )
    return New(opened), closed(s, index, how, text)


def parent_id(s: State, call: Call) -> str:
    """The id of the call that asked for this one, or "" if the model did."""
    return "" if call.parent is None else s.batch.calls[call.parent].id


def closed(s: State, index: int, how: How, text: str, *, is_error: bool = True) -> New:
    """Closes a call. If a gate or a person answered it, the driver takes `is_error` from that answer."""
    call = s.batch.calls[index]
    parent = parent_id(s, call)
    head = CallClosed(s.turn - 1, index, call.id, call.name, how, is_error=is_error, client=call.client, parent=parent)
    return New(head, text)


def await_closed(s: State, index: int, outcome: AwaitOutcome) -> New:
    """Closes the await about a call without an answer."""
    call = s.batch.calls[index]
    return New(AwaitClosed(s.turn - 1, index, call.awaiting, outcome, by="runtime", digest=call.digest))


def ask_person(s: State, index: int, kind: AwaitKind, timeout_us: int | None = None) -> New:
    """Asks a person about a call. The id is the same however often this is decided."""
    call, turn = s.batch.calls[index], s.turn - 1
    id = await_id(turn, index, call)
    timeout_us = s.limits.await_timeout_us if timeout_us is None else timeout_us
    return New(AwaitOpened(turn, index, id, kind, call.digest, timeout_us))
