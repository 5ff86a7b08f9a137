"""`step`: one step of a run, without I/O. It takes the state and new facts, and returns entries, commands and a due
time.

The kernel decides what to append; this adds the content. Any engine can call it: it changes nothing but the working
set, whose conversation takes in the same facts as the state. What an open attempt has used so far moves into the entry
that closes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from msgspec import Struct

from weftline.kernel import policies
from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    AwaitClosed,
    CallClosed,
    CallOpened,
    Fact,
    RunEnded,
    TimerFired,
)
from weftline.kernel.evolve import evolve
from weftline.kernel.policy import CapReached
from weftline.kernel.state import Command, State
from weftline.runtime.budgets.reserving import reserved, settled_if_raised
from weftline.runtime.conversation import PARTS
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.writing import thread_end, write_down
from weftline.store.rows import ThreadEnd

MAX_ROUNDS = 1000
"""The most decisions that may follow from one another; in practice there are a handful."""


class Step(Struct):
    """The outcome of a step: append `entries`, then start `commands`, and ask again at `due_at` if that comes first.

    `due_at` is the next deadline, with or without commands; None if there is none: then only the commands or someone
    outside can advance the run. `thread_end` goes into the transaction of the terminal entry.
    """

    state: State
    entries: list[Draft]
    commands: tuple[Command, ...] = ()
    due_at: int | None = None
    thread_end: ThreadEnd | None = None


def step(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """Folds `facts`, then appends what the kernel decides until it has nothing more to append.

    Returns a new state, but changes `work`: what is appended joins its conversation, and its account is charged. So a
    step cannot be repeated on the same working set: if its append is lost, load the run again from its log, as `Driver`
    does. Otherwise the model reads messages twice.
    """
    entries: list[Draft] = []
    account = work.account
    limited = account is not None and account.active
    if (state.batch.grants or state.limits.policy is not None) and time_has_come(state, at):
        facts = (Draft(TimerFired(at)), *facts)
    for draft in facts:
        entries.append(draft)
        state = take_in(state, work, draft, at=at)
    for _ in range(MAX_ROUNDS):
        decision = decide(state)
        if decision.append and account is not None:
            if limited:
                decision = reserved(decision, state, work, account, at=at)
            if state.budget.refused is not None:
                decision = settled_if_raised(decision, state, account)
        if not decision.append:
            end = thread_end(state, work) if entries and state.step == "ended" else None
            return Step(state, entries, decision.start, decision.due_at, end)
        # A whole decision is encoded before any of it is folded: it was made on one state.
        for draft in [*map(write_down, repeat(state), repeat(work), decision.append)]:
            entries.append(draft)
            state = take_in(state, work, draft, at=at)
    # A driver that fails, and a run that is given up, are better than a server that does nothing else.
    last = ", ".join([type(one.head).__name__ for one in entries[-8:]])
    raise RuntimeError(f"the kernel did not settle after {MAX_ROUNDS} rounds: {last}")


def settle(state: State, work: WorkingSet, *, at: int, opening: bool = False) -> Step:
    """A step of a run that is not open: appends what the kernel decides as long as neither tools nor models are
    needed for it, such as what follows from a deadline. Returns no commands. Changes `work`, as `step` does.

    A run that fails is opened first for the hooks of its agent, unless that is under way: its end does not wait for
    tools that are slow to open.
    """
    entries: list[Draft] = []
    if (state.batch.grants or state.limits.policy is not None) and time_has_come(state, at):
        entries.append(Draft(TimerFired(at)))
        state = take_in(state, work, entries[-1], at=at)
    for _ in range(MAX_ROUNDS):
        append = decide(state).append
        if not append or any(_needs_opening(state, work, new.head, opening=opening) for new in append):
            break
        for draft in [*map(write_down, repeat(state), repeat(work), append)]:
            entries.append(draft)
            state = take_in(state, work, draft, at=at)
    return Step(state, entries, thread_end=thread_end(state, work) if entries and state.ended else None)


def _needs_opening(state: State, work: WorkingSet, head: Fact, *, opening: bool) -> bool:
    """Returns True if this can only be appended to a run that is open."""
    match head:
        case AwaitClosed() | CapReached():
            return False
        case CallOpened():
            return not head.blocked
        case CallClosed():
            call = state.batch.calls[head.index]
            # What the server's tools have begun is adopted first, with the effects that they declare now.
            begun = call.stage == "started" and call.client is None
            return begun or head.how in ("answered", "returned")
        case RunEnded():
            return head.status != "failed" or (work.plan.code is not None and not opening)
        case _:
            return True


def time_has_come(state: State, at: int) -> bool:
    """Returns True if something that the state considers valid has expired: no process was running, or the timer is
    late.
    """
    batch = state.batch
    return (bool(batch.grants) and batch.grants_due <= at and _has_expired_grant(state, at)) or policies.is_due(
        state, at
    )


def _has_expired_grant(state: State, at: int) -> bool:
    grants = [call.grant.expires_at for call in state.batch.calls if call.grant is not None]
    return at > state.now and any(state.now < expires_at <= at for expires_at in grants)


def take_in(state: State, work: WorkingSet, draft: Draft, *, at: int) -> State:
    """Folds one fact into the state, which is returned, and into the conversation and the account of `work`, which
    are changed: as for `step`, a run whose append is lost has to be loaded again.
    """
    head = draft.head
    if type(head) in PARTS:
        work.conversation.take(head, draft.body, draft.turn)
    after = evolve(state, head, at)
    if after.budget is not state.budget and work.account is not None:
        work.account.took(state, after, head)
    return after
