"""`carry_out` executes a command and returns its outcome, which the caller appends.

What a command streams it appends itself, through `RunSink`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import Any, assert_never

from msgspec import Struct

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
from weftline.runtime.agent_code.consulting import check_output, consult, consult_await, consult_policy
from weftline.runtime.live import GONE, LiveRun, WorkingSet
from weftline.runtime.log import WINDOW_BYTES, Log
from weftline.runtime.model_calls.compacting import compact
from weftline.runtime.model_calls.model_call import call_model
from weftline.runtime.services import Outcome, Services, Sink
from weftline.runtime.tool_calls.children import finish_child, start_child
from weftline.runtime.tool_calls.tool_call import reconcile, run_tool


class RunSink(Struct, eq=False):
    """The embedded engine's side of a running command."""

    _log: Log
    _run: LiveRun
    _ask: Callable[[LiveRun, Outcome], bool]
    _attempt: int
    """How many model calls the run had begun when the command was decided on."""

    __repr__ = object.__repr__  # what the run knows belongs in no log and no traceback

    async def permit(self, *, all: bool = False) -> None:
        """Returns when a model may be called: the outcome of the previous attempt is durable, and the store accepts
        writes.

        So at most one request per run can be unknown to the log after a crash.
        """
        log, of_run = self._log, self._run.log
        if log.refusal is not None:
            await log.wait_writable()
        if of_run.durable < of_run.outcome_seq:
            await log.durable(self._run, upto=of_run.outcome_seq)
        if all:
            await log.durable(self._run)

    def durable(self) -> CoroutineType[Any, Any, None]:
        return self._log.durable(self._run)

    def emit(self, kind: str, lines: bytes, count: int = 1) -> None:
        self._log.observe(self._run, kind, lines, count)

    def wanted(self) -> bool:
        state = self._run.log.state
        asking = state.attempt.open or state.compaction.open
        return asking and state.totals.attempts == self._attempt and self._run.residency is not GONE

    def take(self, outcome: Outcome) -> bool:
        return self._ask(self._run, outcome)

    def full(self) -> bool:
        return self._run.log.outbox.size > WINDOW_BYTES


def carry_out(
    command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
) -> CoroutineType[Any, Any, Outcome | None]:
    """Executes `command`, which was decided on in `state`. Returns None if the outcome is no longer wanted."""
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
