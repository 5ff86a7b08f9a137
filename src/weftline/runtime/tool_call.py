"""Carries out one server-side call that the log has permitted, and closes it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from weftline.canonical import digest
from weftline.kernel import bodies
from weftline.kernel.accept import accepts
from weftline.kernel.entries import CallClosed, CallStarted, How
from weftline.kernel.guards import doubt_result
from weftline.kernel.state import Call, Reconcile, RunTool
from weftline.runtime import ids
from weftline.runtime.content import closed_body
from weftline.runtime.live import LiveRun, is_being_cancelled
from weftline.tools.base import Happened, Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    from weftline.runtime.driver import Driver

logger = logging.getLogger(__name__)

TOOL_TIMEOUT_S = 120.0


async def run_tool(driver: Driver, run: LiveRun, command: RunTool) -> None:
    call = run.state.calls[command.index]
    tool = driver.toolbox(run).get(call.name)
    if tool is None:
        output, how = ToolOutput.of(f"The tool {call.name} is no longer there.", is_error=True), "failed"
        _close(driver, run, command, call, output, how, 0)
        return
    if tool.effect != "read":
        await driver.log.durable(run)
    context = _context(driver, run, command)
    loop = asyncio.get_running_loop()
    started = loop.time()
    timeout_s = tool.timeout_s or TOOL_TIMEOUT_S
    how: How = "returned"
    try:
        async with asyncio.timeout(timeout_s):
            output = await tool.invoke(run.prepared[command.index].args, context)
        if output.is_error:
            how = "failed"
    except TimeoutError:
        _tell(context)
        how, output = (
            "timeout",
            ToolOutput.of(f"{call.name} did not finish within {timeout_s:g} seconds and was stopped.", is_error=True),
        )
    except asyncio.CancelledError:
        _tell(context)
        if is_being_cancelled():
            raise
        how, output = "failed", ToolOutput.of(f"{call.name} was cancelled by something within it.", is_error=True)
    except Exception as error:
        logger.exception("run %s: tool %s failed", run.id, call.name)
        how, output = "failed", ToolOutput.of(f"{call.name} failed: {error}", is_error=True)
    _close(driver, run, command, call, output, how, int((loop.time() - started) * 1_000_000))


async def reconcile(driver: Driver, run: LiveRun, command: Reconcile) -> None:
    """Asks a tool whether a call that was cut off took place, and closes it or permits it again."""
    call = run.state.calls[command.index]
    tool = driver.toolbox(run).get(call.name)
    answer = await _ask(driver, run, command, tool) if tool is not None else "unknown"
    if isinstance(answer, Happened):
        how = "failed" if answer.output.is_error else "returned"
        _close(driver, run, command, call, answer.output, how, 0)
    elif answer == "will_not_happen":
        again = CallStarted(command.turn, command.index, command.attempt + 1)
        if accepts(run.state, again, attempt=command.attempt):
            driver.append(run, again, b"")
    else:
        _close(driver, run, command, call, ToolOutput.of(doubt_result(call.name), is_error=True), "in_doubt", 0)


async def _ask(driver: Driver, run: LiveRun, command: Reconcile, tool: Tool) -> Happened | str:
    try:
        async with asyncio.timeout(tool.timeout_s or TOOL_TIMEOUT_S):
            return await tool.reconcile(run.prepared[command.index].args, _context(driver, run, command))
    except (Exception, asyncio.CancelledError):
        if is_being_cancelled():
            raise
        logger.exception("run %s: reconciling %s failed", run.id, tool.spec.name)
        return "unknown"


def _close(
    driver: Driver, run: LiveRun, command: RunTool | Reconcile, call: Call, output: ToolOutput, how: How, active_us: int
) -> None:
    try:
        content = bodies.encode(output.parts)
    except UnicodeEncodeError:  # half a character: no JSON can hold it, and the call must be closed all the same
        output = ToolOutput.of(f"{call.name} answered with text that is not valid Unicode.", is_error=True)
        content, how = bodies.encode(output.parts), "failed"
    body = closed_body(run, command.index, output.parts)
    head = CallClosed(
        command.turn,
        command.index,
        call.id,
        call.name,
        how,
        is_error=output.is_error,
        digest=digest(content),
        active_us=active_us,
    )
    if accepts(run.state, head, attempt=command.attempt):
        driver.append(run, head, body)


def _context(driver: Driver, run: LiveRun, command: RunTool | Reconcile) -> ToolContext:
    call = run.state.calls[command.index]
    plan = run.plan
    assert plan is not None
    return ToolContext(
        run_id=run.id,
        call_id=call.id,
        idempotency_key=ids.idempotency_key(driver.store_id, run.id, command.turn, command.index, call.digest),
        tool_name=call.name,
        workspace=driver.slug(run.workspace),
        turn=command.turn,
        attempt=command.attempt,
        thread_id=driver.thread_id(run),
        agent_id=plan.agent_id,
        metadata=plan.metadata,
        on_cancel=[],
    )


def _tell(context: ToolContext) -> None:
    """Tells a tool that nobody waits for it any more."""
    while context.on_cancel:
        try:
            context.on_cancel.pop()()
        except Exception:
            logger.exception("a cancel callback of %s failed", context.tool_name)
