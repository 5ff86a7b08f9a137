"""Decisions on seats and their part of the fold: who speaks next, when a side turn is over, and what calls end it.

        start               answered · stop_tool · max_steps · no_answer · forced
(none) ───────▶ a seat speaks ───────────────────────────────────────────▶ the other side's seat
                      │  ▲ asked_on: it goes on                   handoff ─▶ that agent's seat
                      └──┘                       without another side, or stopped ─▶ the run ends
"""

from __future__ import annotations

from msgspec.structs import replace

from weftline import prompts
from weftline.kernel.batch import Call
from weftline.kernel.endings import await_closed, blocked, closed, end
from weftline.kernel.seats import (
    MOST_TEXTS,
    STRENGTH,
    ClosingReason,
    RunStopped,
    SeatAskedOn,
    SeatClosing,
    SeatForced,
    SeatRule,
    SeatTaken,
    Why,
)
from weftline.kernel.state import Attempt, Batch, Decision, New, Seats, State, TurnOutput

SESSION_FAILED = "session_failed"
"""The code of a run that a tool has ended as failed."""
STOPPED = "stopped"
"""The reason of a run that code has stopped."""


def before_request(s: State) -> Decision | None:
    """Decides what comes before a seat's next request, if anything does."""
    seats = s.seats
    assert seats is not None
    if not seats.taken:
        return Decision((taken(s, 0, "start"),))
    if seats.stopped:
        return stopped(s)
    rule = s.limits.seats[seats.index]
    if not s.closing and not s.attempt.number and rule.max_steps is not None and seats.steps >= rule.max_steps:
        return Decision((_last_answer(s, "max_steps"),))
    return None


def is_last_side_turn(s: State) -> bool:
    seats, most = s.seats, s.limits.max_side_turns
    return seats is not None and most is not None and seats.taken >= most


def goes_round(s: State) -> bool:
    """Returns True if agents only hand over to each other. A loop of calls does not show it: the guard skips a turn now
    and then, after which the calls are in another order.
    """
    seats, limits = s.seats, s.limits
    return seats is not None and bool(limits.loop_soft) and seats.handoffs >= 2 * limits.loop_hard


def stopped(s: State) -> Decision:
    return end(s, "succeeded", reason=s.guards.final or STOPPED)


def answered(s: State) -> Decision:
    """Decides what follows an answer without calls, if it is not the run's final one."""
    seats = s.seats
    assert seats is not None
    rule = s.limits.seats[seats.index]
    if s.closing or rule.stop_on_response:
        return side_over(s)
    if rule.max_steps is not None and seats.steps >= rule.max_steps:
        return Decision((_last_answer(s, "max_steps"),))
    if rule.max_steps is None and seats.texts >= MOST_TEXTS:
        return Decision((_last_answer(s, "no_answer"),))
    return Decision((New(SeatAskedOn(s.turn - 1), prompts.seats.asked_on(rule.stop_tool)),))


def side_over(s: State, call: str = "") -> Decision:
    """Ends a side turn, by the success of `call` or with an answer. The other side is next, if there is one."""
    seats = s.seats
    assert seats is not None
    if seats.stopped:
        return stopped(s)
    why = _closed_by(seats.closing) or ("stop_tool" if call else "answered")
    if seats.forced is not None:
        return Decision((taken(s, seats.forced, "forced", call),))
    other = _other_side(s.limits.seats, seats.index)
    if other is None:
        return end(s, "succeeded", reason=seats.closing, call=call)
    return Decision((taken(s, other, why, call),))


def _closed_by(closing: str) -> Why | None:
    return "max_steps" if closing == "max_steps" else "no_answer" if closing == "no_answer" else None


def _other_side(rules: tuple[SeatRule, ...], index: int) -> int | None:
    for other, rule in enumerate(rules):
        if rule.side != rules[index].side:
            return other
    return None


def taken(s: State, seat: int, why: Why, call: str = "") -> New:
    rule = s.limits.seats[seat]
    return New(SeatTaken(seat, why, rule.name, rule.side, call))


def _last_answer(s: State, reason: ClosingReason) -> New:
    return New(SeatClosing(s.turn, reason), prompts.seats.CLOSING[reason])


def after_batch(s: State) -> Decision | None:
    """Decides what follows the results of a turn: what its calls have ended, if anything."""
    seats = s.seats
    assert seats is not None
    call = _deciding(s) if s.batch.ending else None
    if call is not None:
        match call.ends:
            case "failure":
                text = prompts.seats.FAILED_BY_TOOL
                return end(s, "failed", code=SESSION_FAILED, reason=s.guards.final, text=text, call=call.id)
            case "session":
                return end(s, "succeeded", reason=s.guards.final, call=call.id)
            case "handoff" if not seats.stopped:
                return Decision((taken(s, call.to_seat, "handoff", call.id),))
            case "side":
                return side_over(s, call.id)
            case _:
                pass
    if seats.stopped:
        return stopped(s)
    return side_over(s) if seats.closing else None


def _deciding(s: State) -> Call | None:
    """The call that decides: of those that succeeded, the strongest of a concurrent batch, else the first."""
    found = [call for call in s.batch.own if call.how == "returned" and _ends_something(s, call)]
    if not found:
        return None
    if not s.batch.concurrent:
        return found[0]
    return max(found, key=lambda call: STRENGTH[call.ends])


def _ends_something(s: State, call: Call) -> bool:
    return bool(call.ends) and (call.ends != "handoff" or 0 <= call.to_seat < len(s.limits.seats))


def rest_of_batch(s: State) -> list[New]:
    """Answers the calls that have not begun when another call of the turn has ended something."""
    append: list[New] = []
    for index, call in enumerate(s.batch.own):
        if call.stage == "asked":
            if call.awaiting:
                append.append(await_closed(s, index, "withdrawn"))
            append += blocked(s, index, "not_run", prompts.seats.OVERTAKEN)
        elif call.stage == "opened" and call.client is None:
            append.append(closed(s, index, "skipped", prompts.seats.OVERTAKEN))
    return append


# The fold. Each function returns the state after a fact, or None if the fact contradicts the state.


def seated(s: State, head: SeatTaken, at: int) -> State | None:
    seats = s.seats
    if seats is None or not 0 <= head.seat < len(s.limits.seats) or s.attempt.open or s.batch.unclosed:
        return None
    now = Seats(head.seat, seats.taken + 1, of_a=seats.of_a, of_b=seats.of_b)
    if head.why == "start":
        now = replace(now, forced=seats.forced)
    handoffs = seats.handoffs + (head.why == "handoff")
    now = replace(now, handoffs=handoffs, stopped=seats.stopped, stopped_by=seats.stopped_by)
    guards = s.guards
    if head.why != "handoff":  # two sides that say the same do not repeat themselves; agents that hand over may
        guards = replace(guards, streak=type(guards.streak)())
    return replace(
        s,
        version=s.version + 1,
        step="model",
        seats=now,
        guards=guards,
        attempt=Attempt(choice=s.limits.seats[head.seat].first_model),
        answer=TurnOutput(s.answer.finish),
        batch=Batch(),
    )


def closing(s: State, head: SeatClosing, at: int) -> State | None:
    if s.seats is None or s.attempt.open or s.batch.unclosed:
        return None
    seats = replace(s.seats, closing=head.reason)
    return replace(s, version=s.version + 1, step="model", seats=seats, batch=Batch())


def asked_on(s: State, head: SeatAskedOn, at: int) -> State | None:
    if s.seats is None or s.step != "answered":
        return None
    return replace(s, version=s.version + 1, step="model")


def forced(s: State, head: SeatForced, at: int) -> State | None:
    if s.seats is None or not 0 <= head.seat < len(s.limits.seats):
        return None
    return replace(s, version=s.version + 1, seats=replace(s.seats, forced=head.seat))


def run_stopped(s: State, head: RunStopped, at: int) -> State | None:
    if s.seats is None:
        return None
    stopping = replace(s.seats, stopped=True, stopped_by=s.seats.stopped_by or head.by)
    return replace(s, version=s.version + 1, seats=stopping)


def stepped(s: State, *, has_calls: bool) -> Seats | None:
    """The seats after another model turn."""
    seats = s.seats
    if seats is None:
        return None
    of_a = s.limits.seats[seats.index].side == "a"
    return replace(
        seats,
        steps=seats.steps + 1,
        texts=0 if has_calls else seats.texts + 1,
        of_a=seats.of_a + of_a,
        of_b=seats.of_b + (not of_a),
    )


def accepts(s: State, head: SeatTaken | SeatForced | RunStopped) -> bool:
    """Returns True if this may come from outside the kernel: which seat begins, and what code asks for."""
    seats = s.seats
    if seats is None or s.control.cancel:
        return False
    if isinstance(head, RunStopped):
        return not seats.stopped
    if not 0 <= head.seat < len(s.limits.seats):
        return False
    if isinstance(head, SeatTaken):
        return head.why == "start" and not seats.taken
    return _other_side(s.limits.seats, head.seat) is not None
