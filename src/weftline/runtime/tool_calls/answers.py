"""Clients' results for calls: turning each into a fact, and recognizing repeated ones."""

from __future__ import annotations

from hashlib import blake2b

from weftline.errors import Conflict
from weftline.kernel.bodies import ClosedBody, decode_closed, encode
from weftline.kernel.entries import KIND, CallClosed, decode_fact
from weftline.kernel.state import Question
from weftline.messages import UserPart
from weftline.runtime.live import Draft, LiveRun
from weftline.runtime.people.awaits import with_edits
from weftline.runtime.step import closed_body, named_failure, size_of, with_failure
from weftline.runtime.tool_calls.shaping import shaped_result
from weftline.store.base import LogReader
from weftline.tools.base import ToolOutput

_LOOK_BACK = 1000
_LOOK_BACK_BYTES = 32 * 1024 * 1024
"""How far back results are searched for a repeated one: a client that got no response retries soon."""


def closed_by_client(
    run: LiveRun, question: Question, output: ToolOutput, *, message_id: str, idempotency_key: str, lease: str = ""
) -> Draft:
    """The fact that closes the call of this open question with a client's result."""
    call, turn = run.state.batch.calls[question.index], run.state.turn - 1
    given = output
    output = shaped_result(output, run.work, turn=turn, index=question.index, id=call.id, name=call.name)
    sent = "" if is_stored_as(given, output.parts, is_error=output.is_error) else digest_of(given)
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
        sent=sent if idempotency_key else "",
        is_json=output.is_json,
    )
    return Draft(with_failure(head, failure), body)


def digest_of(output: ToolOutput) -> str:
    """Identifies a client's result."""
    return blake2b(encode((output.parts, output.is_error)), digest_size=16).hexdigest()


def is_stored_as(output: ToolOutput, parts: tuple[UserPart, ...], *, is_error: bool) -> bool:
    """Returns True if a client's result equals what was stored. A note about a person's edits may follow it there."""
    return (parts[: len(output.parts)], is_error) == (output.parts, output.is_error)


def is_repeated(output: ToolOutput, head: CallClosed, body: ClosedBody) -> bool:
    """Returns True if a client's result is the one that closed the call, whatever its tool made of it."""
    if body.sent:
        return body.sent == digest_of(output)
    return is_stored_as(output, body.parts, is_error=head.is_error)


async def was_answered(store: LogReader, run: int, call: str, output: ToolOutput, *, idempotency_key: str) -> bool:
    """Returns True if the same answer, sent under the same key before, has closed the call.

    Raises `Conflict` (`idempotency_conflict`) if a different answer under this key has.
    """
    closed = await store.newest_facts(run, kinds=(KIND[CallClosed],), limit=_LOOK_BACK, max_bytes=_LOOK_BACK_BYTES)
    for fact in reversed(closed):
        head = decode_fact.decode(fact.head)
        if not isinstance(head, CallClosed) or head.id != call:
            continue
        body = decode_closed(fact.body)
        if body.idempotency_key != idempotency_key:
            return False
        if not is_repeated(output, head, body):
            raise Conflict("This Idempotency-Key was used for another result.", code="idempotency_conflict")
        return True
    return False
