"""In what people are asked, and in what becomes of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from campaigns.simulation.orders import Order
from msgspec.structs import replace

from simulation.planted.bug import CALM, KILLS, PEOPLE, QUESTIONS, Bug, DecidesOnAnotherState, Flushes
from weftline.kernel.entries import TurnCompleted
from weftline.kernel.state import Call, Command, RunTool, State
from weftline.runtime import step as stepping
from weftline.runtime.driver import CarryOut
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.services import Outcome, Services, Sink
from weftline.runtime.step import Step
from weftline.store.rows import Write


def asks_nobody(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """A tool that wants approval is treated like any other."""
    return stepping.step(state, work, [_changed(draft, asks=None) for draft in facts], at=at)


def takes_one_yes_for_all(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """Whoever has approved a call of a tool has approved all that follow."""
    said = [head for head, _ in work.conversation.turn.answers.values() if head.outcome == "approved"]
    if said:
        facts = [_changed(draft, asks=None, allowed_by=said[-1].id) for draft in facts]
    return stepping.step(state, work, facts, at=at)


def _changed(draft: Draft, **fields: Any) -> Draft:
    head = draft.head
    if not isinstance(head, TurnCompleted):
        return draft
    calls = tuple([replace(call, **fields) if call.asks is not None else call for call in head.calls])
    return replace(draft, head=replace(head, calls=calls))


def never_looks_at_the_clock(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """An approval that lapsed while the server was down still counts, and none is asked for again in time."""
    calls = tuple([_for_ever(call) for call in state.batch.calls])
    result = stepping.step(replace(state, batch=replace(state.batch, calls=calls)), work, facts, at=at)
    calls = tuple([_for_ever(call) for call in result.state.batch.calls])
    return replace(result, state=replace(result.state, batch=replace(result.state.batch, calls=calls)))


def _for_ever(call: Call) -> Call:
    return call if call.grant is None else replace(call, grant=replace(call.grant, expires_at=2**62))


def forgets_when_an_answer_is_due(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """People have all the time in the world."""
    result = stepping.step(state, work, facts, at=at)
    asked = any(question.kind != "call" for question in result.state.questions.open.values())
    return replace(result, due_at=None) if asked else result


def runs_what_was_asked_for(real: CarryOut) -> CarryOut:
    """A call that a person has changed is carried out as the model wrote it."""

    async def carry_out(
        command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
    ) -> Outcome | None:
        if isinstance(command, RunTool) and work.conversation.turn.body is not None:
            work.conversation.turn.args[command.index] = work.conversation.turn.prepared(command.index)
        return await real(command, state, work, services, sink)

    return carry_out


def _reporting_doubts(state: State) -> State:
    """Whoever wants to be asked about calls in doubt reads in a result that there were some."""
    return replace(state, limits=replace(state.limits, in_doubt="report"))


def _missing_nothing(state: State) -> State:
    """The model makes of a failed call what it can, whatever a person might know."""
    return replace(state, batch=replace(state.batch, lacking=None))


def _asking_the_tool_again(state: State) -> State:
    """A tool that has asked a person is carried out once more when there is an answer."""
    calls = tuple([_cut_off(call) for call in state.batch.calls])
    return replace(state, batch=replace(state.batch, calls=calls))


def _cut_off(call: Call) -> Call:
    answered = call.asked_back and not call.awaiting and call.attempt == 1
    return replace(call, asked_back=False, lost=True, verdict="ok") if answered else call


def forgets_what_it_was_told(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """What a person said about something missing is in the log, and in no request."""
    result = stepping.step(state, work, facts, at=at)
    work.conversation._clarifying = ""  # pyright: ignore[reportPrivateUsage]
    return result


class ListsWhatIsAnswered(Flushes):
    """The list of what people are asked is cleaned up by whoever answers, and by nothing else."""

    def spoil(self, write: Write) -> None:
        if write.ended_at is not None:
            write.answered = ()


def _waits_briefly(order: Order) -> None:
    order.await_timeout_s = 0.3


BUGS = (
    Bug("asks_nobody", "A2", step=lambda: asks_nobody, among=PEOPLE),
    Bug("takes_one_yes_for_all", "A2", step=lambda: takes_one_yes_for_all, among=PEOPLE),
    Bug("never_looks_at_the_clock", "A2", step=lambda: never_looks_at_the_clock, among=PEOPLE, first=10),
    Bug(
        "forgets_when_an_answer_is_due",
        "D1",
        step=lambda: forgets_when_an_answer_is_due,
        among=PEOPLE,
        odds=CALM,
        provoke=_waits_briefly,
        first=10,
    ),
    Bug("runs_what_was_asked_for", "C3", carry_out=runs_what_was_asked_for, among=PEOPLE, first=7),
    Bug("lists_what_is_answered", "A1", log=ListsWhatIsAnswered, among=PEOPLE, odds=CALM, first=37),
    Bug(
        "reports_doubts",
        "A4",
        step=lambda: DecidesOnAnotherState(_reporting_doubts),
        among=QUESTIONS,
        odds=KILLS,
        first=28,
    ),
    Bug(
        "asks_for_nothing_that_is_missing",
        "A3",
        step=lambda: DecidesOnAnotherState(_missing_nothing),
        among=QUESTIONS,
        first=28,
    ),
    Bug("asks_the_tool_again", "A3 K2", step=lambda: DecidesOnAnotherState(_asking_the_tool_again), among=QUESTIONS),
    Bug("forgets_what_it_was_told", "M1 C8", step=lambda: forgets_what_it_was_told, among=QUESTIONS, first=33),
)
