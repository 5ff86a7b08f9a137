"""Calls that are executed by runs of their own: how a child run is created, and how the call gets its result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Raw
from msgspec.structs import replace

from weftline import prompts
from weftline.failure import ChildLink, Failure, Telemetry
from weftline.kernel import bodies, policies
from weftline.kernel.bodies import FinalResult
from weftline.kernel.entries import FORMAT, KIND, RULES, CallStarted, How, Parent, RunCreated
from weftline.kernel.state import Call, FinishChild, StartChild, State
from weftline.plan import RunPlan, encode_plan
from weftline.runtime import ids
from weftline.runtime.agent_code.code import ChildEnd, ChildLimits
from weftline.runtime.live import Draft, LiveRun, WorkingSet
from weftline.runtime.services import Outcome, Services
from weftline.runtime.tool_calls.tool_call import closed, new_context, pending_call
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.store.rows import Item, NewRun, Write
from weftline.tools.arguments import StaleArguments
from weftline.tools.base import ToolFailed, ToolOutput
from weftline.tools.results import failure_of, reason_of, stale_output
from weftline.work.outcomes import attempt

logger = logging.getLogger(__name__)

NewChild: TypeAlias = Callable[[LiveRun, RunPlan, Parent], tuple[str, Write]]
"""Builds the write that creates a child run, which has its id from then on."""


async def start_child(command: StartChild, state: State, work: WorkingSet, services: Services) -> Outcome:
    """Begins a call together with the run that executes it, or closes the call if no run can be created."""
    call = state.batch.calls[command.index]
    code = (work.toolbox or EMPTY).code
    if code is None or (work.toolbox or EMPTY).get(call.name) is None:
        return _refused(command, call, work, prompts.calls.tool_gone(call.name))
    limits = state.limits
    left = None if limits.max_cost_nusd is None else max(limits.max_cost_nusd - state.totals.cost_nusd, 1)
    context = new_context(command.turn, command.index, 1, call, work, services)
    pending = pending_call(command.index, state, work, turn=command.turn)
    failed = ("run %s: the subagent %s could not be started", work.run_id, call.name)
    try:
        with attempt(logger, *failed, but=(StaleArguments, ToolFailed), or_cancelled=True) as planning:
            plan = await code.plan_child(
                pending,
                context,
                limits=ChildLimits(limits.max_depth, limits.max_children, left, policies.time_left_us(state)),
            )
            return Outcome(Draft(CallStarted(command.turn, command.index, 1, id=call.id, name=call.name)), child=plan)
    except StaleArguments as error:
        return closed(command, call, work, stale_output(error), "not_run", attempt=1)
    except ToolFailed as error:
        text = prompts.subagents.child_not_started(call.name, reason_of(error))
        return _refused(command, call, work, text, failure=failure_of(error, text))
    assert planning.error is not None
    return _refused(command, call, work, prompts.subagents.child_not_started(call.name, reason_of(planning.error)))


def _refused(
    command: StartChild, call: Call, work: WorkingSet, text: str, *, failure: Failure | None = None
) -> Outcome:
    return closed(command, call, work, ToolOutput.of(text, is_error=True, failure=failure), "failed", attempt=1)


async def finish_child(command: FinishChild, state: State, work: WorkingSet, services: Services) -> Outcome:
    """Closes a call with the outcome of its child run."""
    call = state.batch.calls[command.index]
    head, ended = work.conversation.turn.children[command.index]
    end = ChildEnd(
        call.child or "",
        head.status,
        ended.text or ended.partial_text or "",
        ended.error,
        head.code,
        head.usage,
        head.turns,
        head.elapsed_us,
        ended.final,
    )
    context = new_context(command.turn, command.index, call.attempt, call, work, services)
    code = (work.toolbox or EMPTY).code
    failed = ("run %s: the result of the subagent %s could not be created", work.run_id, call.name)
    output = ToolOutput(())
    with attempt(logger, *failed, or_cancelled=True) as finishing:
        if code is None:
            output = as_result(call.name, end)
        else:
            output = await code.finish_child(pending_call(command.index, state, work, turn=command.turn), context, end)
    if finishing.error is not None:
        output = ToolOutput.of(prompts.calls.tool_failed(call.name, reason_of(finishing.error)), is_error=True)
    how: How = "failed" if output.is_error else "returned"
    link = ChildLink(end.run_id, call.name, work.run_id, call.id, ended.calls)
    return closed(command, call, work, with_telemetry(output, end), how, attempt=call.attempt, child=link)


def with_telemetry(output: ToolOutput, end: ChildEnd) -> ToolOutput:
    """Adds the telemetry of a call: what its child used, including all runs below it."""
    tokens = end.usage.input + end.usage.output
    summed = Telemetry(end.elapsed_us // 1000, tokens, extra={"turns": end.turns})
    own = output.telemetry
    if own is not None:  # that of the terminal tool that ended the child
        summed = replace(summed, model=own.model, extra={**own.extra, **summed.extra})
    return replace(output, telemetry=summed)


def as_result(tool: str, end: ChildEnd) -> ToolOutput:
    """Returns a child run as the model reads it: its answer, or why there is none."""
    match end.status:
        case "succeeded":
            return ToolOutput.of(end.text) if end.final is None else final_output(tool, end.final)
        case "failed":
            return ToolOutput.of(prompts.subagents.child_failed(tool, end.error or end.code), is_error=True)
        case "cancelled":
            return ToolOutput.of(prompts.subagents.child_cancelled(tool), is_error=True)


def final_output(tool: str, final: FinalResult) -> ToolOutput:
    """Returns the result of a child's terminal tool as that of its parent's call of `tool`."""
    failure = final.failure
    if failure is not None and failure.hint is not None:  # it is about this call now
        failure = replace(failure, hint=replace(failure.hint, tool=tool))
    return ToolOutput(
        final.parts,
        failure is not None,
        failure=failure,
        telemetry=final.telemetry,
        bounds=final.bounds,
        server_data=final.server_data,
    )


def child_write(run: LiveRun, plan: RunPlan, parent: Parent, *, key: int, epoch: int, at: int) -> tuple[str, Write]:
    """The id of a new child of `run`, and the write that creates it."""
    family = run.listed_under
    new = NewRun(ids.new_salt(), run.workspace, plan.name, "{}", at, RULES, agent=plan.agent_id, family=family)
    head = RunCreated(RULES, plan.limits, parent=parent)
    carried = bodies.CarriedCall(
        run.state.batch.calls[parent.index].name, Raw(run.work.conversation.turn.args[parent.index])
    )
    body = bodies.encode(bodies.CreatedBody(Raw(encode_plan(plan)), call=carried))
    created = Item(at, KIND[RunCreated], bodies.encode(head), body)
    write = Write(
        key,
        epoch,
        base_seq=1,
        base_version=0,
        items=[created],
        version=1,
        status="queued",
        due_at=0,
        format=FORMAT,
        new=new,
    )
    return ids.run_id(key, new.salt), write
