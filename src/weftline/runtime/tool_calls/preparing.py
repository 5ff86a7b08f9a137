"""Prepares calls that a model, or a running call, asked for, before any decision: finds their tools and final
arguments.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from weftline import prompts
from weftline.failure import Failure
from weftline.kernel.bodies import AskBody, TurnBody, TurnCall, turn_body, turn_call
from weftline.kernel.entries import AskedCall
from weftline.messages import Assistant, ToolCall, joined_text
from weftline.runtime.agent_code.code import RunCode
from weftline.runtime.live import WorkingSet
from weftline.runtime.pacing import LARGE_CHARS
from weftline.runtime.people.awaits import put_to_people
from weftline.runtime.services import Services
from weftline.runtime.tool_calls.final_args import NotChecked, PrepareFailed, final_args
from weftline.runtime.tool_calls.injecting import injecting, takes_injected
from weftline.runtime.tool_calls.shaping import shaped_call
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.text.canonical import NotCanonical, canonical, digest
from weftline.tools import hinting
from weftline.tools.arguments import InvalidArguments
from weftline.tools.base import (
    Tool,
    doubt_policy,
    ends_run,
    is_bookkeeping,
    is_carried_out_by_run,
    is_hidden,
    is_host,
)
from weftline.tools.client_side import input_invalid_result
from weftline.tools.injected import NotInjected
from weftline.tools.shaping import refused_by, shaping_of
from weftline.work.outcomes import attempt

logger = logging.getLogger(__name__)

_BATCH_SIZE = 64
_BATCH_CHARS = 64 * 1024
"""How many calls, and characters of arguments, are prepared at once."""


class Prepared(Struct, frozen=True):
    """A prepared call. `invalid` is what is read instead of its result, if it cannot begin."""

    asked: AskedCall
    args: bytes
    invalid: str = ""
    ask: AskBody | None = None
    failure: Failure | None = None

    def stored(self, written: str) -> TurnCall:
        """Returns the stored form of it, beside its arguments as they were written."""
        return turn_call(written, args=self.args, invalid=self.invalid, ask=self.ask, failure=self.failure)


async def prepare_calls(
    message: Assistant, work: WorkingSet, services: Services, *, turn: int, withheld: Collection[str] = ()
) -> tuple[tuple[AskedCall, ...], TurnBody]:
    """Prepares the calls of a model's message. Tools that are `withheld` in this turn are not called."""
    calls = message.calls
    if not calls:
        return (), TurnBody(message)
    asked: list[AskedCall] = []
    stored: list[TurnCall] = []
    calls_since, chars_since = 0, 0
    for call in calls:
        if len(call.args) > LARGE_CHARS:
            await services.large.wait_for_slot()
        elif calls_since >= _BATCH_SIZE or chars_since + len(call.args) > _BATCH_CHARS:
            await asyncio.sleep(0)  # lets other tasks run
            calls_since, chars_since = 0, 0
        calls_since, chars_since = calls_since + 1, chars_since + len(call.args)
        prepared = await prepare_call(call, work, services, turn=turn, withheld=withheld)
        asked.append(prepared.asked)
        stored.append(prepared.stored(call.args))
    return tuple(asked), turn_body(message, stored)


async def prepare_call(
    call: ToolCall,
    work: WorkingSet,
    services: Services,
    *,
    turn: int,
    parent: str = "",
    withheld: Collection[str] = (),
) -> Prepared:
    """Finds a call's tool and final arguments, once: from here on they are facts, whatever code runs next.

    `parent` is the call that asked for it, if it was not the model; such calls can also use hidden tools.
    """
    toolbox = work.toolbox or EMPTY
    code = toolbox.code
    gated = code is not None and code.has_gates
    tool = toolbox.get(call.name)
    hidden = tool is not None and is_hidden(tool)
    if tool is None or (hidden and not parent):
        args = _as_object(call.args)
        return Prepared(AskedCall(call.id, call.name, digest(args), "unknown", concurrent=True, gated=gated), args)
    shaping = shaping_of(tool)
    if takes_injected(tool):
        tool = injecting(tool, work, turn=turn, call_id=call.id, parent=parent)
    refused: _Rejected | None = None
    if shaping is not None and shaping.adapt is not None:
        with attempt(logger, "run %s: the arguments of %s could not be adapted", work.run_id, call.name) as adapting:
            shaped = shaped_call(shaping, work, turn=turn, id=call.id, tool=call.name, args=call.args, parent=parent)
            call = replace(call, args=shaping.adapted(shaped))
        if adapting.error is not None:
            refused = _Rejected(*refused_by(call.name, adapting.error))
    prepared = refused or await _prepared(tool, call, work, services, code)
    rejected = prepared if isinstance(prepared, _Rejected) else None
    args = _as_object(call.args) if isinstance(prepared, _Rejected) else prepared
    verdict = "ok" if rejected is None else "invalid"
    if call.name in toolbox.excluded or (call.name in withheld and not hidden):
        rejected, verdict = None, "excluded"
    asked = AskedCall(
        call.id,
        call.name,
        digest(args),
        verdict,
        tool.effect,
        tool.client,
        tool.concurrent and not (code is not None and code.sequential),
        gated and verdict != "excluded",
        is_carried_out_by_run(tool),
        in_doubt=doubt_policy(tool),
        bookkeeping=is_bookkeeping(tool),
        terminal=ends_run(tool),
        host=is_host(tool),
    )
    limits = work.plan.limits
    alone = hidden and limits.nobody_to_ask and not limits.await_gate
    asks = rejected is None and (alone or (verdict == "ok" and not gated))
    asking = put_to_people(tool, args, work) if asks else None
    if asking is not None and alone and not asking.allowed_by:
        # The code that made this call can be told; the run need not fail.
        text = asking.problem if asking.body is None else prompts.calls.nobody_to_ask(asking.body.prompt)
        rejected, asked = _Rejected(text), replace(asked, verdict="invalid")
    if rejected is not None:
        return Prepared(asked, args, rejected.text, failure=rejected.failure)
    if gated or verdict != "ok" or asking is None:
        return Prepared(asked, args)
    asked = replace(asked, verdict=asking.verdict, asks=asking.asks, allowed_by=asking.allowed_by)
    return Prepared(asked, args, asking.problem, asking.body)


class _Rejected(Struct, frozen=True):
    """The text that the model reads instead of a result, and what else is known."""

    text: str
    failure: Failure | None = None


async def _prepared(
    tool: Tool, call: ToolCall, work: WorkingSet, services: Services, code: RunCode | None
) -> bytes | _Rejected:
    """The final arguments of a call, or what the model reads instead of its result, whatever the tool's code does."""
    prepare = None if code is None else partial(code.prepare, tool)
    try:
        return await final_args(tool, call.args, services, prepare=prepare)
    except NotInjected as error:
        logger.error("run %s: %s cannot be called: the run has no %s for it", work.run_id, call.name, error.field)
        return _Rejected(error.message, Failure(error.message, "unavailable"))
    except InvalidArguments as error:
        text = (
            joined_text(input_invalid_result(tool, error).parts) if code is None else code.describe_invalid(tool, error)
        )
        return _Rejected(text, hinting.invalid_arguments(tool, call, error))
    except NotChecked as error:
        logger.warning("run %s: the arguments of %s were not checked: %s", work.run_id, call.name, error)
        text = prompts.calls.not_checked(call.name, str(error))
        return _Rejected(text, Failure(text, "unavailable"))
    except PrepareFailed as error:
        logger.exception("run %s: the tool %s failed to prepare a call", work.run_id, call.name)
        text = prompts.calls.tool_failed_to_prepare(call.name, str(error))
        return _Rejected(text, Failure(text, "internal"))


def _as_object(args: str) -> bytes:
    """Arguments that never reach a tool, if they can be displayed: an object, or an empty one."""
    try:
        canon = canonical(args)
    except NotCanonical:
        return b"{}"
    return canon if canon.startswith(b"{") else b"{}"
