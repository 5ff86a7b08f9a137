"""Executes one server-side call that the log has permitted, and reports its one result."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import assert_never, cast

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from weftline import prompts
from weftline.failure import ChildLink, Failure, Hint
from weftline.kernel import bodies
from weftline.kernel.calls import asks_about_doubt
from weftline.kernel.entries import CallClosed, CallStarted, How
from weftline.kernel.state import Call, FinishChild, Reconcile, RunTool, StartChild, State
from weftline.runtime import ids
from weftline.runtime.agent_code.code import PendingCall
from weftline.runtime.agent_code.inside import ProgressNotes, RunMemory
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.model_calls.models import is_blind
from weftline.runtime.people.awaits import ask_about_doubt, ask_back, with_edits
from weftline.runtime.services import NotStarted, Outcome, Services, Sink
from weftline.runtime.tool_calls.asking import AskingCall, tool_timeout_s
from weftline.runtime.tool_calls.preparing import injecting, refused_in_clients_place
from weftline.runtime.tool_calls.shaping import shaped_result, storable_data, storable_failure, storable_telemetry
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.runtime.writing import closed_body, named_failure, size_of, with_failure
from weftline.text.canonical import NotCanonical, digest
from weftline.tools.asking import Ask
from weftline.tools.base import Happened, Tool, ToolContext, ToolOutput, Unknown, WillNotHappen
from weftline.tools.results import output_of, raised_by, with_bounds
from weftline.tools.workers import NoThread
from weftline.trace_context import fields, inside_span
from weftline.work.outcomes import attempt, is_being_cancelled, is_interruption, raise_if_cancelled
from weftline.work.threads import not_started

logger = logging.getLogger(__name__)

HOST_TIMEOUT_S = 365 * 86_400.0
_REPEATABLE = ("read", "idempotent")
"""Effects whose calls are not in doubt, since they can be repeated."""


async def run_tool(command: RunTool, state: State, work: WorkingSet, services: Services, sink: Sink) -> Outcome:
    call, toolbox = state.batch.calls[command.index], work.toolbox or EMPTY
    tool = toolbox.get(call.tool)
    if tool is None:
        gone = ToolOutput.of(prompts.calls.tool_gone(call.tool), is_error=True)
        return closed(command, call, work, gone, "failed", attempt=command.attempt)
    args = work.conversation.turn.args[command.index]
    parent = work.conversation.turn.parent_of(command.index)
    tool = injecting(tool, work, turn=command.turn, call_id=call.id, parent=parent)
    if call.fallback and (refused := await refused_in_clients_place(tool, args, work, services)) is not None:
        if _may_have_happened(command, call):
            doubt = ToolOutput.of(prompts.calls.in_doubt(call.tool), in_doubt=True)
            return closed(command, call, work, doubt, "in_doubt", attempt=command.attempt)
        return closed(command, call, work, refused, "failed", attempt=command.attempt)
    if call.effect != "read":
        try:
            await sink.durable()
        except asyncio.CancelledError as error:
            raise _cancelled_before_start(error, command, call, work) from None
    context = new_context(command.turn, command.index, command.attempt, call, work, services)
    notes = ProgressNotes(sink, call.id, call.name)
    context.on_progress, context.emit = notes.take, notes.emit
    asking = None
    if call.host:
        asking = context.further = AskingCall(
            command, state, work, services, sink, limit_s=tool_timeout_s(tool, state, work, services)
        )
    memory = context.state = RunMemory(work.conversation.shared.values)
    code = toolbox.code
    loop = asyncio.get_running_loop()
    started = loop.time()
    timeout_s = tool_timeout_s(tool, state, work, services)
    how: How
    # The time of a call that asks for others does not include theirs.
    deadline = services.deadlines.after(timeout_s if asking is None else HOST_TIMEOUT_S)
    try:
        with deadline:
            if asking is not None:
                asking.limit(deadline.expire)  # unless the tool gives a better one

            if code is None:
                output = await _invoked(command, call, tool, args, context)
            else:
                pending = pending_call(command.index, state, work, turn=command.turn)
                output = await code.execute(pending, context, partial(_invoked, command, call, tool, args, context))
        if deadline.expired and output.is_error:
            raise TimeoutError  # whatever it says, it was cut off
        how = _how(output, tool)
    except asyncio.CancelledError as error:
        _notify(context)
        if is_being_cancelled():
            if _not_started(error, tool):
                raise _cancelled_before_start(error, command, call, work) from None
            raise
        how, output = "failed", ToolOutput.of(prompts.calls.tool_cancelled_itself(call.name), is_error=True)
    except BaseException as error:
        if is_interruption(error):
            raise
        if deadline.expired:
            _notify(context)
            waited = _not_started(error.__cause__, tool) and not _may_have_happened(command, call)
            output = _timed_out(tool, timeout_s, begun=not waited)
            how = "in_doubt" if output.in_doubt else "timeout"
        else:
            if is_being_cancelled():
                _notify(context)
                raise_if_cancelled(error)
            extra = fields(run=context.run_id, tool=call.name, call=call.id)
            logger.exception("run %s: the tool %s failed", context.run_id, call.name, extra=extra)
            how, output = "failed", raised_by(call.name, error)
    finally:
        notes.close()
        if asking is not None:
            asking.close()
    if output.asks is not None and state.limits.interrupts_allowed:
        ask = Ask(output.asks.prompt, "question", output.asks.options, output.asks.multiple, (), output.asks_for_s)
        return Outcome(ask_back(command, call, state, work, ask), command.attempt)
    if output.asks is not None:
        how, output = "failed", ToolOutput.of(prompts.calls.nobody_to_ask(output.asks.prompt), is_error=True)
    active_us = int((loop.time() - started if asking is None else asking.own_s) * 1_000_000)
    if active_us > services.slow_turn_us:
        took_s = active_us / 1e6
        logger.info(
            "run %s: slow turn: the tool %s took %.1f s in turn %d",
            context.run_id,
            call.name,
            took_s,
            command.turn,
            extra=fields(run=context.run_id, tool=call.name, call=call.id, seconds=took_s, turn=command.turn),
        )
    remembered = _remembered(memory, work, context)
    attempt = command.attempt
    return closed(command, call, work, output, how, attempt=attempt, active_us=active_us, state=remembered)


async def _invoked(command: RunTool, call: Call, tool: Tool, args: bytes, context: ToolContext) -> ToolOutput:
    """The tool's own result, with its bounds, telemetry and server data."""
    try:
        with inside_span(context.traceparent):
            output = await tool.invoke(args, context)
    except NoThread as error:
        if not _not_started(error, tool):
            raise
        extra = fields(run=context.run_id, tool=call.name, call=call.id)
        logger.error("run %s: no thread for the tool %s: %s", context.run_id, call.name, error.__cause__, extra=extra)
        if _may_have_happened(command, call):
            return ToolOutput.of(prompts.calls.in_doubt(call.tool), in_doubt=True, not_run=True)
        return ToolOutput.of(prompts.calls.no_thread(call.tool), not_run=True)
    if output.bounds is not None or tool.traits.bounded:
        output = with_bounds(tool, output)
    if context.telemetry is not None and output.telemetry is None:
        output = replace(output, telemetry=context.telemetry)
    if context.server_data:
        left = storable_data(context.server_data, run_id=context.run_id, tool=context.tool_name)
        output = replace(output, server_data=left)
    if output.not_run and _may_have_happened(command, call):
        return ToolOutput.of(prompts.calls.changed_since_begun(call.tool), in_doubt=True, not_run=True)
    return output


def _not_started(error: BaseException | None, tool: Tool) -> bool:
    """Returns True if the tool got no thread, or was cancelled while it was still waiting for one."""
    return not_started(error) is tool


def _cancelled_before_start(
    error: asyncio.CancelledError, command: RunTool, call: Call, work: WorkingSet
) -> asyncio.CancelledError:
    if call.effect in _REPEATABLE:
        return error  # whoever drives the run next makes the call
    nothing = ToolOutput.of(prompts.calls.stopped_before_start(call.name), not_run=True)
    return NotStarted(closed(command, call, work, nothing, "not_run", attempt=command.attempt))


def _may_have_happened(command: RunTool, call: Call) -> bool:
    """Returns True if an earlier attempt of the call may have taken effect.

    It cannot have if the tool only reads. If it is neither that nor `idempotent`, the call was begun again because the
    tool, or a person, has made sure that it did not.
    """
    return command.attempt > 1 and call.effect == "idempotent"


def _remembered(memory: RunMemory, work: WorkingSet, context: ToolContext) -> Raw | UnsetType:
    try:
        return work.conversation.shared.changes(memory.changed)
    except NotCanonical as error:
        tool = context.tool_name
        logger.error("run %s: what the tool %s wants to remember is not JSON: %s", context.run_id, tool, error)
        return work.conversation.shared.changes()


async def reconcile(command: Reconcile, state: State, work: WorkingSet, services: Services) -> Outcome:
    """Asks a tool whether an interrupted call took place: the call is closed, or permitted again."""
    call = state.batch.calls[command.index]
    tool = (work.toolbox or EMPTY).get(call.tool)
    answer = Unknown()
    if tool is not None:
        answer = await _ask(command, call, work, services, tool, limit_s=tool_timeout_s(tool, state, work, services))
    match answer:
        case ToolOutput():
            return closed(command, call, work, answer, _how(answer, tool), attempt=command.attempt)
        case WillNotHappen():
            return Outcome(Draft(CallStarted(command.turn, command.index, command.attempt + 1)), command.attempt)
        case Unknown() if asks_about_doubt(state, call):
            return Outcome(ask_about_doubt(command, call, state, work), command.attempt)
        case Unknown():
            doubt = ToolOutput.of(prompts.calls.in_doubt(call.name), is_error=True)
            return closed(command, call, work, doubt, "in_doubt", attempt=command.attempt)
        case _:
            assert_never(answer)


async def _ask(
    command: Reconcile, call: Call, work: WorkingSet, services: Services, tool: Tool, *, limit_s: float
) -> ToolOutput | WillNotHappen | Unknown:
    """The result of a call that happened, `WillNotHappen`, or `Unknown`, whatever the tool does or returns."""
    context = new_context(command.turn, command.index, command.attempt, call, work, services)
    context.state = dict(work.conversation.shared.values)
    answer: object = None
    with attempt(logger, "run %s: reconciling %s failed", context.run_id, call.name, or_cancelled=True) as asking:
        with services.deadlines.after(limit_s):
            answer = cast(object, await tool.reconcile(work.conversation.turn.args[command.index], context))
        if isinstance(answer, Happened):
            output = output_of(answer.result, tool_name=call.name)
            return with_bounds(tool, output) if output.bounds is not None or tool.traits.bounded else output
    if asking.error is not None:
        return Unknown()
    if isinstance(answer, WillNotHappen | Unknown):
        return answer
    logger.error("run %s: reconciling %s gave %.100r", context.run_id, call.name, answer)
    return Unknown()


def _how(output: ToolOutput, tool: Tool | None) -> How:
    if output.not_run:
        return "in_doubt" if output.in_doubt else "not_run"
    if output.in_doubt and not (tool is not None and tool.effect in _REPEATABLE):
        return "in_doubt"
    if output.is_error and not (output.final and tool is not None and tool.traits.terminal):
        return "failed"
    return "returned"


def _timed_out(tool: Tool, timeout_s: float, *, begun: bool) -> ToolOutput:
    """The result of a call that timed out. Nobody waits for its answer, but what it started may still take effect."""
    if not begun:
        return ToolOutput.of(prompts.calls.timed_out_before_start(tool.spec.name, timeout_s), is_error=True)
    in_doubt = tool.effect not in _REPEATABLE
    text = prompts.calls.tool_timed_out(tool.spec.name, timeout_s, in_doubt=in_doubt)
    # For a call that is closed as timed out, kind and hint follow from that.
    failure = Failure(text, "timeout", hint=Hint("timeout")) if in_doubt else None
    return ToolOutput.of(text, is_error=True, in_doubt=in_doubt, failure=failure)


def closed(
    command: RunTool | Reconcile | StartChild | FinishChild,
    call: Call,
    work: WorkingSet,
    output: ToolOutput,
    how: How,
    *,
    attempt: int,
    active_us: int = 0,
    state: Raw | UnsetType = UNSET,
    child: ChildLink | None = None,
) -> Outcome:
    """The one result of a call, wherever it was executed."""
    if how in ("returned", "failed"):
        shaped = shaped_result(
            output, work, turn=command.turn, index=command.index, id=call.id, name=call.tool, active_us=active_us
        )
        if shaped is not output:
            output, how = shaped, _how(shaped, (work.toolbox or EMPTY).get(call.tool))
    if work.conversation.turn.answers and how != "not_run":
        output = with_edits(output, command.index, work)
    try:
        content = bodies.encode(output.parts)
    except UnicodeEncodeError:
        output, content, how = _storable(output, call.name, how)
    head = CallClosed(
        command.turn,
        command.index,
        call.id,
        call.name,
        how,
        is_error=output.is_error,
        digest=digest(content),
        active_us=active_us,
        size=size_of(work, output.parts),
        parent=work.conversation.turn.parent_of(command.index),
    )
    failure, telemetry = None, output.telemetry
    if output.is_error:
        failure = storable_failure(named_failure(output.failure, call.name), run_id=work.run_id, tool=call.name)
        head = with_failure(head, failure)
    if telemetry is not None:
        telemetry = storable_telemetry(telemetry, run_id=work.run_id, tool=call.name)
    body = closed_body(
        work,
        command.index,
        output.parts,
        state=state,
        failure=failure,
        telemetry=telemetry,
        bounds=None if output.is_error else output.bounds,
        server_data=output.server_data,
        child=child,
        is_json=output.is_json,
    )
    return Outcome(Draft(head, body), attempt)


def _storable(output: ToolOutput, tool: str, how: How) -> tuple[ToolOutput, bytes, How]:
    """Replaces a result that the log cannot hold because of an unpaired surrogate. The call must be closed anyway."""
    output = output.whole()
    try:
        return output, bodies.encode(output.parts), how
    except UnicodeEncodeError:  # for example in the name of an image
        output = ToolOutput.of(prompts.calls.result_not_text(tool), is_error=True)
        return output, bodies.encode(output.parts), "failed"


def new_context(turn: int, index: int, attempt: int, call: Call, work: WorkingSet, services: Services) -> ToolContext:
    plan, toolbox, tool = work.plan, work.toolbox or EMPTY, call.tool
    context: ToolContext = ToolContext(
        run_id=work.run_id,
        call_id=call.id,
        idempotency_key=ids.idempotency_key(services.store_id, work.unique_id, turn, index, call.digest),
        tool_name=tool,
        workspace=work.workspace_slug,
        turn=turn,
        attempt=attempt,
        thread_id=work.session_id,
        agent_id=plan.agent_id or (None if plan.code is None else plan.name or None),
        metadata=plan.metadata,
        labels=plan.labels | work.conversation.labels,
        parent_call=work.conversation.turn.parent_of(index) or None,
        traceparent=None if plan.trace is None else plan.trace.of_call(work.run_id, turn, index),
        toolset=toolbox.toolset_of(tool),
        on_cancel=[],
    )
    code = toolbox.code
    if code is not None:
        code.prepare_context(context)
    return context


def pending_call(index: int, state: State, work: WorkingSet, *, turn: int) -> PendingCall:
    """The call as the agent's code sees it."""
    call = state.batch.calls[index]
    conversation = work.conversation
    tool = (work.toolbox or EMPTY).get(call.name)
    if tool is not None:
        tool = injecting(tool, work, turn=turn, call_id=call.id, parent=conversation.turn.parent_of(index))
    return PendingCall(
        turn=turn,
        index=index,
        id=call.id,
        name=call.name,
        raw_args=conversation.turn.written(index),
        args=conversation.turn.args[index],
        problem=conversation.turn.asked(index).invalid,
        tool=tool,
        counts=dict(conversation.calls.counts),
        under_way=partial(conversation.turn.under_way, state.batch.calls),
        prepared=conversation.turn.prepared(index),
        result_of=conversation.result_of,
        is_blind=lambda: is_blind(work, state.attempt.choice),
    )


def _notify(context: ToolContext) -> None:
    """Notifies a tool that its result is no longer wanted."""
    while context.on_cancel:
        with attempt(logger, "run %s: an on_cancel callback of %s failed", context.run_id, context.tool_name):
            context.on_cancel.pop()()
