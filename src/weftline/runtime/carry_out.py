"""`carry_out`: executes a command and returns its outcome. The caller appends the outcome; the command itself appends
nothing.

Observations (streamed text) go to the sink while the command runs.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_never

from msgspec.structs import replace

from weftline.kernel.state import (
    CallModel,
    CheckOutput,
    Command,
    Compact,
    Consult,
    ConsultAwait,
    ConsultPolicy,
    FinishChild,
    Reconcile,
    RunTool,
    StartChild,
    State,
)
from weftline.runtime.agent_code.consulting import check_output, consult, consult_await
from weftline.runtime.agent_code.judging import consult_policy
from weftline.runtime.live import WorkingSet
from weftline.runtime.model_calls.compacting import compact
from weftline.runtime.model_calls.model_call import call_model
from weftline.runtime.services import Outcome, Services, Sink
from weftline.runtime.tool_calls.children import finish_child, start_child
from weftline.runtime.tool_calls.tool_call import reconcile, run_tool


async def carry_out(command: Command, state: State, work: WorkingSet, services: Services, sink: Sink) -> Outcome | None:
    """Executes `command`, which was decided on in `state`. Returns None if the outcome is no longer wanted."""
    outcome = await _work_of(command, state, work, services, sink)
    code = None if work.toolbox is None else work.toolbox.code
    if code is None or outcome is None or not (notes := code.pop_notes()):
        return outcome
    return replace(outcome, notes=(*outcome.notes, *notes))


def _work_of(
    command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
) -> Coroutine[Any, Any, Outcome | None]:
    match command:
        case CallModel():
            return call_model(command, state, work, services, sink)
        case RunTool():
            return run_tool(command, state, work, services, sink)
        case Reconcile():
            return reconcile(command, state, work, services)
        case Consult():
            return consult(command, state, work, services)
        case ConsultPolicy():
            return consult_policy(command, state, work)
        case StartChild():
            return start_child(command, state, work, services)
        case FinishChild():
            return finish_child(command, state, work, services)
        case ConsultAwait():
            return consult_await(command, state, work, services)
        case CheckOutput():
            return check_output(command, work)
        case Compact():
            return compact(command, state, work, services, sink)
        case _:
            assert_never(command)
