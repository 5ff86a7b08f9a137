"""Asks the code of a run's agent: about a call before it is announced, and about an answer before the run ends."""

from __future__ import annotations

from msgspec import UNSET, Raw

from weftline.canonical import digest
from weftline.kernel import bodies
from weftline.kernel.entries import CallGated, OutputAccepted, OutputRejected
from weftline.kernel.state import CheckOutput, Consult, State
from weftline.runtime.code import PendingCall
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.memory import RunMemory
from weftline.runtime.services import Outcome, Services
from weftline.runtime.tool_call import new_context, pending_call
from weftline.runtime.toolbox import EMPTY


async def consult(command: Consult, state: State, work: WorkingSet, services: Services) -> Outcome:
    call = state.batch.calls[command.index]
    code = (work.toolbox or EMPTY).code
    asked = pending_call(command.index, state, work, turn=command.turn)
    if code is None:
        # Its agent has no gates any more. What the pipeline found stands.
        return Outcome(_undecided(command, asked))
    memory = RunMemory(work.conversation.memory)
    context = new_context(command.turn, command.index, 0, call, work, services)
    context.state = memory
    gated = await code.gate(asked, context)
    changed = gated.args != asked.args and bool(gated.args)
    body = bodies.GatedBody(
        Raw(gated.args) if changed else UNSET, gated.parts, gated.is_error, memory.changes(), gated.steer
    )
    head = CallGated(
        command.turn,
        command.index,
        gated.verdict,
        digest(gated.args) if changed else call.digest,
        gated.yields,
        gated.over,
    )
    return Outcome(Draft(head, bodies.encode(body)))


def _undecided(command: Consult, asked: PendingCall) -> Draft:
    verdict = "unknown" if asked.tool is None else "invalid" if asked.problem else "ok"
    head = CallGated(command.turn, command.index, verdict, digest(asked.args))
    return Draft(head, bodies.encode(bodies.GatedBody()))


async def check_output(command: CheckOutput, work: WorkingSet) -> Outcome:
    code = (work.toolbox or EMPTY).code
    problem = "" if code is None else await code.check_output(work.conversation.last_text)
    if not problem:
        return Outcome(Draft(OutputAccepted(command.turn)))
    return Outcome(Draft(OutputRejected(command.turn), bodies.encode(bodies.TextBody(problem))))
