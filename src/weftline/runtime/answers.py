"""Clients' results of calls: the fact that each becomes, and those that come again."""

from __future__ import annotations

from weftline.errors import Conflict
from weftline.kernel.bodies import decode_closed
from weftline.kernel.entries import KIND, CallClosed, decode_fact
from weftline.kernel.state import Question
from weftline.runtime.awaits import with_edits
from weftline.runtime.live import Draft, LiveRun
from weftline.runtime.shaping import shaped_result
from weftline.runtime.step import closed_body, named_failure, size_of, with_failure
from weftline.store.base import LogReader
from weftline.tools.base import ToolOutput

_LOOK_BACK = 1000
_LOOK_BACK_BYTES = 32 * 1024 * 1024
"""Of the newest results: whoever got no answer asks again soon."""


def closed_by_client(
    run: LiveRun, question: Question, output: ToolOutput, *, message_id: str, idempotency_key: str, lease: str = ""
) -> Draft:
    """The end of the call that this open question stands for."""
    call, turn = run.state.batch.calls[question.index], run.state.turn - 1
    output = shaped_result(output, run.work, turn=turn, index=question.index, id=call.id, name=call.name)
    output = with_edits(output, question.index, run.work)
    head = CallClosed(
        turn,
        question.index,
        call.id,
        call.name,
        "failed" if output.is_error else "returned",
        is_error=output.is_error,
        client=call.client,
        size=size_of(run.work, output.parts),
        parent=run.work.conversation.turn.parent_of(question.index),
        lease=lease,
    )
    failure = named_failure(output.failure, call.name) if output.is_error else None
    body = closed_body(
        run.work,
        question.index,
        output.parts,
        message_id=message_id,
        idempotency_key=idempotency_key,
        failure=failure,
        telemetry=output.telemetry,
        bounds=output.bounds,
        server_data=output.server_data,
    )
    return Draft(with_failure(head, failure), body)


async def was_answered(store: LogReader, run: int, call: str, output: ToolOutput, *, idempotency_key: str) -> bool:
    """Whether this very answer, sent under the same key before, has closed the call.

    Raises `Conflict` (`idempotency_conflict`) if another answer under this key has.
    """
    closed = await store.newest_facts(run, kinds=(KIND[CallClosed],), limit=_LOOK_BACK, max_bytes=_LOOK_BACK_BYTES)
    for fact in reversed(closed):
        head = decode_fact.decode(fact.head)
        if not isinstance(head, CallClosed) or head.id != call:
            continue
        body = decode_closed(fact.body)
        if body.idempotency_key != idempotency_key:
            return False
        sent = body.parts[: len(output.parts)]  # what a person changed about the call may stand after it
        if (sent, head.is_error) != (output.parts, output.is_error):
            raise Conflict("This Idempotency-Key was used for another result.", code="idempotency_conflict")
        return True
    return False
