"""Results of the calls that clients execute, whatever protocol they come by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from weftline import prompts
from weftline.errors import invalid_field
from weftline.runtime.engine import Engine
from weftline.tools.base import ToolOutput
from weftline.wire.requests import ToolResultBody
from weftline.wire.responses import Warnings
from weftline.wire.run_responses import AcceptedResult

if TYPE_CHECKING:  # its models take long to load
    from weftline.api.schemas.provided import SentResults


TOO_LARGE = "larger than the limit; the call was closed with an error."


async def answer_call(
    calls: Engine,
    key: int,
    sent: ToolResultBody,
    *,
    message_id: str = "",
    idempotency_key: str = "",
    warnings: Warnings = UNSET,
) -> AcceptedResult:
    """Accepts the result of a call; see `Engine.answer`.

    Raises `InvalidRequest` for one that is too large. The client may give up after that, so the model is told too, and
    the run does not wait for the timeout.
    """
    if sent.oversize:
        output = ToolOutput.of(prompts.calls.RESULT_TOO_LARGE, is_error=True)
    else:
        failure = None if sent.failure is None else sent.failure.failure(sent.error or "")
        output = ToolOutput.of(sent.error or sent.result or "", is_error=sent.error is not None, failure=failure)
        if sent.files:
            output = replace(output, parts=(*output.parts, *sent.files))
    accepted = await calls.answer(
        key,
        sent.tool_use_id,
        output,
        message_id=message_id,
        idempotency_key=idempotency_key,
        token=sent.token,
    )
    if sent.oversize:
        raise invalid_field("result, error or files", TOO_LARGE)
    return AcceptedResult(ignored=UNSET if accepted else True, warnings=warnings)


async def answer_calls(
    calls: Engine,
    key: int,
    await_id: str,
    sent: SentResults,
    *,
    idempotency_key: str = "",
    warnings: Warnings = UNSET,
) -> AcceptedResult:
    """Accepts the results of all calls of a turn; see `Engine.provide`."""
    accepted = await calls.provide(key, await_id, sent.results, problems=sent.problems, idempotency_key=idempotency_key)
    return AcceptedResult(ignored=UNSET if accepted else True, warnings=warnings)
