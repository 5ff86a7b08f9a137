"""Prepares calls that a model, or a running call, asked for, before any decision: finds their tools and final
arguments.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, TypeGuard, cast

from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from weftline import prompts
from weftline.errors import InvalidRequest
from weftline.failure import Failure
from weftline.kernel.bodies import AskBody, TurnBody, TurnCall, turn_body, turn_call
from weftline.kernel.entries import AskedCall
from weftline.kernel.state import State
from weftline.messages import Assistant, ToolCall, joined_text
from weftline.plan import A2ALocalRef, A2ARef, LocalRef, McpLocalRef, McpRef, RunPlan, ServerRef, StoredRef
from weftline.runtime.agent_code.code import RunCode
from weftline.runtime.live import WorkingSet
from weftline.runtime.people.awaits import put_to_people
from weftline.runtime.services import Services
from weftline.runtime.tasks import LARGE_CHARS
from weftline.runtime.tool_calls.shaping import adapted, refused_by, shaped_call
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.text.canonical import NotCanonical, canonical, digest
from weftline.text.suggestions import did_you_mean
from weftline.tools import coercion
from weftline.tools.arguments import InvalidArguments, NotInjected
from weftline.tools.base import Tool, ToolOutput
from weftline.tools.client_side import input_invalid_result
from weftline.tools.function import FunctionTool
from weftline.tools.results import reason_of
from weftline.tools.validation_work import NOT_CHECKED, SMALL_BYTES
from weftline.work.outcomes import attempt, is_being_cancelled, is_interruption
from weftline.work.threads import not_started


def takes_injected(tool: Tool) -> TypeGuard[FunctionTool[..., Any, Any]]:
    """Returns True if a run fills in some of its arguments."""
    return isinstance(tool, FunctionTool) and bool(tool.injected)


def injecting(tool: Tool, work: WorkingSet, *, turn: int, call_id: str, parent: str = "") -> Tool:
    """The tool for one call, with the values that the run fills in. `parent` is the call that asked for it."""
    if not takes_injected(tool):
        return tool
    known: dict[str, object] = {
        "run_id": work.run_id,
        "turn": turn,
        "turn_id": work.plan.turn_id or f"{work.run_id}.{turn}",
    }
    known["call_id"] = known["tool_call_id"] = call_id
    if work.session_id:
        known["thread_id"] = work.session_id
    if parent:
        known["parent_call"] = known["parent_tool_call_id"] = parent
    return tool.injecting({**work.plan.labels, **work.conversation.labels, **known})


PREPARE_TIMEOUT_S = 30.0
"""The time-out for preparing the arguments of one call, if its tool has none of its own."""
_check_object = Decoder(dict[str, Raw]).decode
"""What a tool has prepared goes into the log unchanged."""


class PrepareFailed(Exception):
    """The tool broke, hung or returned something else. The message is the reason, as a model reads it."""


class NotChecked(PrepareFailed):
    """The arguments waited too long for their turn to be checked, which is not the fault of the tool."""


async def final_args(
    tool: Tool, args: str, services: Services, *, prepare: Callable[[str], Awaitable[bytes]] | None = None
) -> bytes:
    """The final arguments of a call. `prepare` is called in place of the tool's own.

    Raises `InvalidArguments` or `NotInjected` as the tool does, `NotChecked`, and `PrepareFailed` for everything else.
    """
    prepare = tool.prepare if prepare is None else prepare
    limit_s = tool.timeout_s or PREPARE_TIMEOUT_S
    kind: type[object] = type(tool)
    at_once = kind is FunctionTool and len(args) <= SMALL_BYTES
    deadline = None if at_once else services.deadlines.after(limit_s)
    try:
        if deadline is None:  # its validators do not await, so no deadline could end them
            made = cast(object, await prepare(args))
        else:
            with deadline:
                made = cast(object, await prepare(args))
        if not isinstance(made, bytes):
            raise TypeError(f"prepare returned {type(made).__name__}, not bytes")
        _check_object(made)
        return made
    except (InvalidArguments, NotInjected):
        raise
    except BaseException as error:
        if is_being_cancelled() or is_interruption(error):
            raise
        late = deadline is not None and deadline.expired
        if late and not_started(error.__cause__) is NOT_CHECKED:
            raise NotChecked(prompts.calls.waited_too_long(limit_s)) from None
        raise PrepareFailed(prompts.calls.took_too_long(limit_s) if late else reason_of(error)) from error


logger = logging.getLogger(__name__)


def check_fallbacks(plan: RunPlan) -> None:
    """Rejects a plan whose fallbacks cannot work."""
    rule = plan.limits.leases
    if rule is None or not rule.fallbacks:
        return
    once: set[str] = set()
    known: set[str] = set()
    for ref in plan.tools:
        match ref:
            case LocalRef():
                known.add(ref.name)
                if ref.effect == "once":
                    once.add(ref.name)
            case A2ALocalRef():
                known.add(ref.name)
            case McpLocalRef():
                known.update([entry.name for entry in ref.tools])
            case _:
                pass
    own = _own_names(plan)
    for name, fallback in rule.fallbacks.items():
        if name not in known:
            raise InvalidRequest(f"There is a fallback for {name!r}, but the run has no client-side tool of that name.")
        if name in once:
            raise InvalidRequest(
                f"The tool {name!r} is declared `once`: a call that may have started cannot be given to another tool."
            )
        if fallback in known:
            raise InvalidRequest(f"The fallback of {name!r}, {fallback!r}, is also executed by clients.")
        if own is not None and fallback not in own:
            near = did_you_mean(fallback, own)
            raise InvalidRequest(f"The fallback of {name!r}, {fallback!r}, is not a tool of the run.{near}")


def _own_names(plan: RunPlan) -> set[str] | None:
    """The names of a run's server tools; None if some are known only when the tools are opened."""
    if plan.code is not None or any(isinstance(ref, StoredRef | A2ARef | McpRef) for ref in plan.tools):
        return None
    bare = [ref.name.rpartition("/")[2] for ref in plan.tools if isinstance(ref, ServerRef)]
    return {*bare, *[name.replace("-", "_") for name in bare]}


async def refused_in_clients_place(tool: Tool, args: bytes, work: WorkingSet, services: Services) -> ToolOutput | None:
    """Returns the text for the model if the tool cannot execute the call with these arguments; None if it can."""
    name, toolbox = tool.spec.name, work.toolbox or EMPTY
    why = ""
    if tool.client is not None:
        why = prompts.calls.FALLBACK_FOR_CLIENTS
    elif tool.traits.is_agent or tool.traits.terminal:
        why = prompts.calls.FALLBACK_NOT_PLAIN
    elif name in toolbox.excluded:
        why = prompts.calls.FALLBACK_NOT_ALLOWED
    elif toolbox.code is not None and toolbox.code.has_gates:
        why = prompts.calls.FALLBACK_NOT_CHECKED
    elif takes_injected(tool):
        why = prompts.calls.FALLBACK_INJECTED
    elif put_to_people(tool, args, work) is not None:
        why = prompts.calls.FALLBACK_NOT_APPROVED
    if why:
        return ToolOutput.of(prompts.calls.no_fallback(name, why), is_error=True)
    try:
        # It runs with the bytes in the log, or not at all.
        same = await final_args(tool, args.decode(), services) == args
        why = "" if same else prompts.calls.FALLBACK_OTHER_ARGUMENTS
    except InvalidArguments as error:
        why = error.message.rstrip(".")
    except PrepareFailed as error:
        logger.exception("run %s: the fallback %s failed to prepare a call", work.run_id, name)
        why = prompts.calls.fallback_failed(str(error))
    return ToolOutput.of(prompts.calls.no_fallback(name, why), is_error=True) if why else None


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
    message: Assistant, work: WorkingSet, services: Services, *, turn: int, state: State
) -> tuple[tuple[AskedCall, ...], TurnBody]:
    """Prepares the calls of a model's message. Tools that are withheld in this turn are not called, and those of other
    seats are unknown.
    """
    calls = message.calls
    if not calls:
        return (), TurnBody(message)
    code = (work.toolbox or EMPTY).code
    seats = None if code is None or state.seats is None else code.seats
    seat = None if seats is None else seats.of(state)
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
        known = seats is None or seat is None or seats.has(seat, call.name)
        prepared = await prepare_call(call, work, services, turn=turn, withheld=state.guards.withheld, known=known)
        asked.append(prepared.asked if seats is None else seats.ended_by(prepared.asked, state))
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
    known: bool = True,
) -> Prepared:
    """Finds a call's tool and final arguments, once: from here on they are facts, whatever code runs next.

    `parent` is the call that asked for it, if it was not the model; such calls can also use hidden tools. Without
    `known`, there is no such tool for whoever speaks.
    """
    toolbox = work.toolbox or EMPTY
    code = toolbox.code
    gated = code is not None and code.has_gates
    tool = toolbox.get(call.name) if known else None
    hidden = tool is not None and tool.traits.hidden
    if tool is None or (hidden and not parent):
        args = _as_object(call.args)
        return Prepared(AskedCall(call.id, call.name, digest(args), "unknown", concurrent=True, gated=gated), args)
    traits, shaping = tool.traits, tool.traits.shaping
    tool = injecting(tool, work, turn=turn, call_id=call.id, parent=parent)
    refused: _Rejected | None = None
    if shaping is not None and shaping.adapt is not None:
        with attempt(logger, "run %s: the arguments of %s could not be adapted", work.run_id, call.name) as adapting:
            shaped = shaped_call(shaping, work, turn=turn, id=call.id, tool=call.name, args=call.args, parent=parent)
            call = replace(call, args=adapted(shaping, shaped))
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
        traits.is_agent,
        in_doubt=traits.in_doubt,
        bookkeeping=traits.bookkeeping,
        terminal=traits.terminal,
        host=traits.host,
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
        return _Rejected(text, coercion.invalid_arguments(tool, call, error))
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
