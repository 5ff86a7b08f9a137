"""In `step`: what is decided, and what of it is written down."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from simulation.planted.bug import CALM, KILLS, Bug, asks_in_vain
from weftline.kernel.state import State
from weftline.runtime import step as stepping
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.step import Step, take_in


class WritesADecisionAgain:
    """Takes a decision for lost when something came in from outside meanwhile, and appends it as it was."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[WorkingSet, Step]] = {}

    def __call__(self, state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
        _, before = self._before.get(id(work), (work, None))
        again: list[Draft] = []
        if before is not None and len(before.state.control.queue) < len(state.control.queue):
            for draft in before.entries:
                again.append(draft)
                state = take_in(state, work, draft, at=at)
        result = stepping.step(state, work, facts, at=at)
        self._before[id(work)] = (work, result)
        return replace(result, entries=[*again, *result.entries])


def goes_on_as_if_nothing_were_lost(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """After a restart, what was begun before it is begun once more under the same attempt."""
    calls = tuple([replace(call, lost=False) for call in state.batch.calls])
    state = replace(state, attempt=replace(state.attempt, lost=False), batch=replace(state.batch, calls=calls))
    return stepping.step(state, work, facts, at=at)


def drops_usage_on_cancel(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    if state.control.cancel:
        work.answering = None
    return stepping.step(state, work, facts, at=at)


def forgets_deadlines_while_commands_run(
    state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int
) -> Step:
    result = stepping.step(state, work, facts, at=at)
    return replace(result, due_at=None) if result.commands else result


def leaves_out_what_it_was_told(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """A thread gets the input of a run and its last text, whatever was said in between."""
    result = stepping.step(state, work, facts, at=at)
    if result.thread_end is not None:
        del result.thread_end.messages[1:-1]
    return result


BUGS = (
    Bug("writes_a_decision_again", "K2 K6 K7 K8 K9 K10 K13 C1 C5 B1 B2", step=WritesADecisionAgain, first=2),
    Bug(
        "goes_on_as_if_nothing_were_lost",
        "K2 K13 C3 C4 C6 C12",
        step=lambda: goes_on_as_if_nothing_were_lost,
        odds=KILLS,
    ),
    Bug("drops_usage_on_cancel", "C4", step=lambda: drops_usage_on_cancel, first=5),
    Bug(
        "forgets_deadlines_while_commands_run",
        "D1 D2",
        step=lambda: forgets_deadlines_while_commands_run,
        odds=CALM,
        provoke=partial(asks_in_vain, timeout_s=2.0),
    ),
    Bug("leaves_out_what_it_was_told", "C8", step=lambda: leaves_out_what_it_was_told),
)
