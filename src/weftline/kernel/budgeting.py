"""The budget tree as a run sees it: what it reserves while calls run, and what follows when a call does not fit.

    a call is due ──▶ does its worst case fit? ──▶ held by the fact that begins it ──▶ used by the one that ends it
                                │
                                ▼ no
                          budget.refused ──▶ every call has its result ──▶ final.forced, or the run fails

The kernel does not decide whether a call fits: the limits, and what other runs spend, are outside the run. The answer
is recorded as a fact.
"""

from __future__ import annotations

from msgspec.structs import replace

from weftline import prompts
from weftline.kernel.context import CompactionFailed, ContextCompacted
from weftline.kernel.control import OF_RUN
from weftline.kernel.endings import await_closed, blocked, end, result_of_answer
from weftline.kernel.entries import AttemptFailed, AwaitOpened, CallClosed, Fact, RunEnded, TurnCompleted
from weftline.kernel.policy import BudgetRefused, Held, Unit
from weftline.kernel.state import Decision, New, State

STOPPED = "budget_exceeded"
UNPRICED = "unpriced_model"


# Decisions


def ask_for_reservation(s: State) -> Decision | None:
    """Asks a person, once nothing is running that would be cut off; None if nobody is to be asked."""
    if not waits(s) or s.attempt.open or s.compaction.open or s.batch.running:
        return None
    return Decision((New(AwaitOpened(s.turn, OF_RUN, f"budget_{s.budget.asked + 1}", "budget", "")),))


def waits(s: State) -> bool:
    """Returns True if the run waits for a person to decide. If nobody can be asked, it is brought to its end
    instead.
    """
    refused = s.budget.refused
    if refused is None or refused.outcome != "ask" or refused.final or refused.model:
        return False
    return s.limits.interrupts_allowed and not s.limits.nobody_to_ask


def before_batch(s: State) -> Decision | None:
    """Answers the calls that can no longer begin; None if all have begun or have a result, or a person is asked."""
    if s.budget.refused is None or not s.batch.asked or waits(s):
        return None
    text = prompts.policy.over_budget(s.budget.refused.level)
    append: list[New] = []
    for index, call in enumerate(s.batch.calls):
        if call.stage == "asked":
            if call.awaiting:
                append.append(await_closed(s, index, "withdrawn"))
            append += result_of_answer(s, index) or blocked(s, index, "cap", text)
    return Decision(tuple(append))


def stopped(s: State) -> Decision | None:
    """Ends a run that may not even have a final turn; None if it continues."""
    refused = s.budget.refused
    if refused is None:
        return None
    if refused.model:
        text = f"The model {refused.model} has no known price, so it cannot be used under a limit in US dollars."
        return end(s, "failed", code=UNPRICED, reason="budget", text=text)
    if refused.outcome == "stop" or refused.final:
        return end(s, "failed", code=STOPPED, reason="budget", text=sentence(refused))
    return None


def sentence(refused: BudgetRefused) -> str:
    """Explains what does not fit, for people who read why a run has ended."""
    unit = refused.unit
    per = "" if refused.period == "total" else f" per {refused.period}"
    parts = [f"{in_words(refused.spent, unit)} spent"]
    if refused.reserved:
        parts.append(f"{in_words(refused.reserved, unit)} reserved")
    limit = f"{in_words(refused.limit, unit)}{per}, {', '.join(parts)}"
    if unit == "seconds":
        return f"The budget of the {refused.level} is used up: {limit}."
    asked = f"asks for up to {in_words(refused.asked, unit)}."
    if refused.spent + refused.reserved < refused.limit:
        return f"The next call does not fit in the budget of the {refused.level}: {limit}. It {asked}"
    return f"The budget of the {refused.level} is used up: {limit}. The next call {asked}"


def in_words(amount: int, unit: Unit) -> str:
    match unit:
        case "usd":
            return f"{amount / 1_000_000_000:.9f}".rstrip("0").rstrip(".") + " USD"
        case "seconds":
            return f"{amount / 1_000_000:g} seconds"
        case "tokens" | "calls":
            return f"{amount} {unit if amount != 1 else unit.removesuffix('s')}"


# Folds


def attempt_slot(turn: int, attempt: int) -> str:
    return f"a{turn}.{attempt}"


def summary_slot(number: int) -> str:
    return f"s{number}"


def call_slot(turn: int, index: int) -> str:
    return f"c{turn}.{index}"


def hold(s: State, slot: str, held: Held) -> State:
    return replace(s, budget=replace(s.budget, holds=s.budget.holds | {slot: held}))


def settle(s: State, head: Fact) -> State:
    """Releases what was reserved for the call that this fact ends."""
    slot = _ended_by(head)
    if slot is None:
        return replace(s, budget=replace(s.budget, holds={})) if type(head) is RunEnded else s
    if slot not in s.budget.holds:
        return s
    left = {one: held for one, held in s.budget.holds.items() if one != slot}
    return replace(s, budget=replace(s.budget, holds=left))


def refused(s: State, head: BudgetRefused, at: int) -> State:
    return replace(s, version=s.version + 1, budget=replace(s.budget, refused=head))


def _ended_by(head: Fact) -> str | None:
    match head:
        case TurnCompleted() | AttemptFailed():
            return attempt_slot(head.turn, head.attempt)
        case CallClosed():
            return call_slot(head.turn, head.index)
        case ContextCompacted() | CompactionFailed():
            return summary_slot(head.number)
        case _:
            return None
