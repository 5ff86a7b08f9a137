"""The part of the fold that handles calls, from the turn that asked for them to the last result, and loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Literal, TypeAlias

from msgspec.structs import replace

from weftline.failure import CORRECTABLE, Recovery, failed_as
from weftline.kernel import policies
from weftline.kernel.control import EXECUTED
from weftline.kernel.entries import (
    STRICTNESS,
    AskedCall,
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
from weftline.kernel.questions import with_question, without_question
from weftline.kernel.state import Batch, BudgetUse, Call, Doubt, Guards, Question, State, Streak

PERIODS = (1, 2, 3, 4)
_NONE = (0, 0, 0, 0)


def signature(calls: Iterable[tuple[str, str]]) -> str:
    """One value for a turn's calls (name and argument digest), regardless of order."""
    joined = "\n".join(sorted([f"{name} {digest}" for name, digest in calls]))
    return blake2b(joined.encode(), digest_size=12).hexdigest()


def after_turn(streak: Streak, sign: str, limits: Limits) -> Streak:
    """The streak after one more turn of calls. A turn that breaks the repetition resets what was reported."""
    recent, before = streak.recent, streak.matches
    matches = _NONE
    if sign in recent:
        matches = tuple([before[p - 1] + 1 if len(recent) >= p and recent[-p] == sign else 0 for p in PERIODS])
    new = replace(streak, recent=(*recent, sign)[-4:], matches=matches)
    return replace(new, reported=False) if streak.reported and repetitions(new)[0] < limits.loop_soft else new


def repetitions(streak: Streak) -> tuple[int, Literal["calls", "cycle"]]:
    """Returns how often the latest sequence of turns occurred in a row, including the first time."""
    one, two, three, four = streak.matches
    same, cycle = one + 1, max(two // 2, three // 3, four // 4) + 1
    return (same, "calls") if same >= cycle else (cycle, "cycle")


def after_batch(streak: Streak, calls: Sequence[Call]) -> Streak:
    """Counts turns that call the same tools with different arguments and get equal results."""
    for call in calls:
        if call.effect != "read" or call.how not in EXECUTED:
            return replace(streak, results="", same_results=0) if streak.same_results else streak
    results = signature([(call.name, call.result) for call in calls])
    repeated_calls = streak.matches[0] > 0
    same = streak.same_results + 1 if results == streak.results and not repeated_calls else 1
    return replace(streak, results=results, same_results=same)


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
        ends=one.ends,
        to_seat=one.to_seat,
    )


def asked_further(s: State, head: CallAsked, at: int) -> State | None:
    """The state after the fact, or None if the fact contradicts the state. The functions below return the same."""
    batch = s.batch
    if head.turn != s.turn - 1 or head.index != len(batch.calls) or not 0 <= head.parent < head.index:
        return None
    parent = batch.calls[head.parent]
    if not parent.host or parent.stage != "started":
        return None
    call = replace(
        _new_call(head.call),
        parent=head.parent,
        concurrent=head.call.concurrent,
        host=False,
        terminal=False,
        ends="",
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


def gated(s: State, head: CallGated, at: int) -> State | None:
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
    batch = s.batch
    first, undecided = batch.first_gated, min(batch.undecided, head.index)
    if head.index == first:
        first = _next_gated(batch.calls, first + 1)
    batch = batch.with_call(head.index, decided, gated=batch.gated - 1, first_gated=first, undecided=undecided)
    return replace(s, version=s.version + 1, batch=batch)


def opened(s: State, head: CallOpened, at: int) -> State | None:
    call = _unclosed(s, head)
    if call is None or call.stage != "asked" or head.client != call.client or call.awaiting:
        return None
    if call.grant is not None and not head.blocked and call.grant.digest != head.digest:
        return None
    batch, questions, counted = s.batch, s.questions, s.guards
    if not head.blocked:
        if s.limits.tool_budgets:
            counted = _count(counted, s.limits, call.name, used=1)
        if head.client is not None:
            if call.id in questions.open:
                return None
            deadline_at = None if head.timeout_us is None else at + head.timeout_us
            questions = with_question(questions, call.id, Question(head.index, deadline_at))
    # A client-side call is offered by this fact, which uses up the grant.
    grant = None if head.blocked or head.client is not None else call.grant
    announced = replace(call, stage="opened", effect=head.effect, gated=False, grant=grant)
    asked, gated, offered = batch.asked - 1, batch.gated - call.gated, head.client is not None
    batch = batch.with_call(
        head.index,
        announced,
        asked=asked,
        gated=gated,
        undecided=len(batch.calls) if asked == gated + batch.held - call.held else batch.undecided,
        ready=batch.ready - offered,
        to_offer=batch.to_offer - offered,
    )
    announced_in = replace(s, version=s.version + 1, batch=batch, questions=questions, guards=counted)
    return announced_in if head.blocked or s.limits.policy is None else policies.opened(announced_in, call)


def asks_about_doubt(s: State, call: Call) -> bool:
    """Returns True if a person is asked what became of the call if a crash interrupts it and its tool does not know."""
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
    batch = batch.with_call(head.index, begun, running=running, next=_cursor(batch, head.index), ready=ready)
    return replace(s, version=s.version + 1, batch=batch)


def child_ended(s: State, head: ChildEnded, at: int) -> State | None:
    call = _unclosed(s, head)
    if call is None or not call.waits_for_child:
        return None
    batch = s.batch.with_call(head.index, replace(call, child_ended=True))
    return replace(s, version=s.version + 1, batch=batch)


def child_waits(s: State, head: ChildWaits, at: int) -> State | None:
    call = _unclosed(s, head)
    if call is None or not call.waits_for_child:
        return None
    batch = s.batch.with_call(head.index, replace(call, child_waits=head.waits))
    return replace(s, version=s.version + 1, batch=batch)


def closed(s: State, head: CallClosed, at: int) -> State | None:
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
        running = tuple(filter(head.index.__ne__, running))
    elif call.client is None:
        ready -= 1
    elif call.id in questions.open:
        questions = without_question(questions, call.id)
    if head.active_us > 0:
        totals = replace(totals, active_us=totals.active_us + head.active_us)
    batch = batch.with_call(
        head.index,
        ended,
        unclosed=batch.unclosed - 1,
        running=running,
        next=_cursor(batch, head.index),
        bytes=batch.bytes + max(head.size, 0) if head.size and call.parent is None else batch.bytes,
        lacking=head.index if head.hint is not None and _lacks(batch, head) else batch.lacking,
        ready=ready,
    )
    if call.ends and s.seats is not None and head.how == "returned":
        batch = replace(batch, ending=True)
    if batch.nested:
        batch = _closed_among_nested(batch, head.index, call)
    remembered = s.guards if head.how in EXECUTED else _remember(s, call, head)
    if not batch.unclosed:
        remembered = _recovered(remembered, after_batch(remembered.streak, batch.own), batch.calls)
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
    """Returns True if this is the first call so far that failed because something is missing."""
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


_OfCall: TypeAlias = CallGated | CallOpened | CallStarted | ChildEnded | ChildWaits | CallClosed


def _unclosed(s: State, head: _OfCall) -> Call | None:
    calls, index = s.batch.calls, head.index
    if head.turn != s.turn - 1 or not 0 <= index < len(calls):
        return None
    call = calls[index]
    return None if call.stage == "closed" else call


def _cursor(batch: Batch, begun: int) -> int:
    """Where the cursor is once this call has begun. It advances only past the call that it points at, so that each call
    is visited once per batch.
    """
    return next_waiting(batch.calls, begun + 1) if begun == batch.next else batch.next


def _remember(s: State, call: Call, head: CallClosed) -> Guards:
    """Adds a call that its tool did not answer to the guards."""
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
    """Decides what a failure means for the next turn. No tool is withheld unless its result asked for that."""
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
