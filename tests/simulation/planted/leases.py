"""In leases of client calls."""

from __future__ import annotations

from msgspec.structs import replace

from simulation.planted.bug import LEASES, Bug, DecidesOnAnotherState
from weftline.kernel.accept import open_question
from weftline.kernel.questions import earliest_deadline
from weftline.kernel.state import State
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.tool_calls.provided import closed_by_client
from weftline.tools.base import ToolOutput


class AnybodyAnswers(EmbeddedEngine):
    """Whoever answers a call first has answered it, whoever has claimed it."""

    async def answer(
        self,
        key: int,
        call_id: str,
        output: ToolOutput,
        *,
        message_id: str = "",
        idempotency_key: str = "",
        token: str = "",
    ) -> bool:
        run = await self._load(key)
        question = None if run.state.ended else open_question(run.state, call_id)
        if question is None:
            return await super().answer(key, call_id, output)
        draft = closed_by_client(run, question, output, message_id="", idempotency_key="")
        await self._append_all(run, (draft,))
        return True


def _in_a_hurry(state: State) -> State:
    """A lease is over after half of its time."""
    asked = {
        id: replace(one, lease=replace(one.lease, until=one.lease.until - one.lease.lease_us // 2))
        if one.lease
        else one
        for id, one in state.questions.open.items()
    }
    questions = replace(state.questions, open=asked)
    return replace(state, questions=replace(questions, due_at=earliest_deadline(questions)))


BUGS = (
    Bug("anybody_answers", "L1", engine=AnybodyAnswers, among=LEASES),
    Bug("takes_calls_away_early", "L2", step=lambda: DecidesOnAnotherState(_in_a_hurry), among=LEASES, first=21),
)
