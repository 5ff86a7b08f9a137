"""Consults the code of a run's agent: its policy and gates about calls, and its checks about an answer."""

from __future__ import annotations

import logging

from msgspec import UNSET, Raw

from weftline import prompts
from weftline.kernel import bodies, policies
from weftline.kernel.entries import AwaitClosed, AwaitPassed, CallGated, OutputAccepted, OutputRejected
from weftline.kernel.policy import PolicyDecided
from weftline.kernel.state import CheckOutput, Consult, ConsultAwait, ConsultPolicy, State
from weftline.messages import Text
from weftline.runtime.agent_code.code import CodeAnswer, Judged, PendingAwait, PendingCall, PendingTurn
from weftline.runtime.agent_code.inside import RunMemory
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.people.awaits import AwaitPlan, may_decide, put_to_people, question_of
from weftline.runtime.services import Outcome, Services
from weftline.runtime.tool_calls.tool_call import new_context, pending_call
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.text.canonical import NotCanonical, canonical_value, digest
from weftline.work.outcomes import attempt

logger = logging.getLogger(__name__)


async def consult_policy(command: ConsultPolicy, state: State, work: WorkingSet) -> Outcome:
    """If the engine fails or no longer exists, no call of the turn may run."""
    code = (work.toolbox or EMPTY).code
    judged: Judged | None = None
    if code is None:
        logger.error("run %s: the policy engine of its agent is gone", work.run_id)
    else:
        with attempt(logger, "run %s: its policy engine failed", work.run_id, or_cancelled=True):
            judged = await code.judge(_pending(command, state, work))
    if judged is None:
        return Outcome(Draft(PolicyDecided(command.turn, failed=True), bodies.encode(bodies.PolicyBody())))
    try:
        metadata = Raw(canonical_value(judged.metadata)) if judged.metadata else UNSET
    except NotCanonical as error:
        logger.error("run %s: the metadata of its policy engine is not JSON: %s", work.run_id, error)
        return Outcome(Draft(PolicyDecided(command.turn, failed=True), bodies.encode(bodies.PolicyBody())))
    head = PolicyDecided(
        command.turn,
        judged.allowed,
        judged.calls_left,
        judged.failures_left,
        judged.disable_tools,
    )
    return Outcome(Draft(head, bodies.encode(bodies.PolicyBody(dict(judged.labels), metadata))))


def _pending(command: ConsultPolicy, state: State, work: WorkingSet) -> PendingTurn:
    toolbox = work.toolbox or EMPTY
    most, most_failures = policies.call_cap(state), policies.failure_cap(state)
    return PendingTurn(
        turn=command.turn,
        calls=tuple([pending_call(index, state, work, turn=command.turn) for index in range(len(state.batch.calls))]),
        tools=tuple(
            [tool for name, tool in toolbox.tools.items() if name not in toolbox.excluded and not tool.traits.hidden]
        ),
        calls_left=None if most is None else max(most - state.policy.calls, 0),
        failures_left=None if most_failures is None else max(most_failures - state.policy.failures, 0),
        labels=work.plan.labels | work.conversation.labels,
        unavailable=work.conversation.calls.unavailable,
        hint=work.conversation.calls.last_hint,
    )


async def consult(command: Consult, state: State, work: WorkingSet, services: Services) -> Outcome:
    call = state.batch.calls[command.index]
    code = (work.toolbox or EMPTY).code
    asked = pending_call(command.index, state, work, turn=command.turn)
    if code is None:
        # Its agent no longer has gates. What the pipeline found stands.
        return Outcome(_undecided(command, asked, work))
    memory = RunMemory(work.conversation.shared.values)
    context = new_context(command.turn, command.index, 0, call, work, services)
    context.state = memory
    gated = await code.ask_gates(asked, context)
    changed = gated.args != asked.args and bool(gated.args)
    asking = AwaitPlan(gated.verdict)
    if gated.verdict == "ok" and asked.tool is not None:
        asking = put_to_people(asked.tool, gated.args, work, ask=gated.ask) or asking
    if gated.allowed_by and not (asking.body is not None and asking.body.approvers):
        asking = AwaitPlan(allowed_by=gated.allowed_by)  # a skill cannot answer for named approvers
    body = bodies.GatedBody(
        Raw(gated.args) if changed else UNSET,
        (Text(asking.problem),) if asking.problem else gated.parts,
        gated.is_error or bool(asking.problem),
        work.conversation.shared.changes(memory.changed),
        gated.steer,
        asking.body,
        None if asking.problem else gated.bounds,
        gated.hint,
    )
    head = CallGated(
        command.turn,
        command.index,
        asking.verdict,
        digest(gated.args) if changed else call.digest,
        gated.yields,
        gated.over,
        asking.asks,
        asking.allowed_by,
    )
    return Outcome(Draft(head, bodies.encode(body)))


def _undecided(command: Consult, asked: PendingCall, work: WorkingSet) -> Draft:
    asking = AwaitPlan("unknown" if asked.tool is None else "invalid" if asked.problem else "ok")
    if asking.verdict == "ok" and asked.tool is not None:
        asking = put_to_people(asked.tool, asked.args, work) or asking
    head = CallGated(
        command.turn,
        command.index,
        asking.verdict,
        digest(asked.args),
        asks=asking.asks,
        allowed_by=asking.allowed_by,
    )
    parts = (Text(asking.problem),) if asking.problem else ()
    return Draft(head, bodies.encode(bodies.GatedBody(parts=parts, is_error=bool(parts), ask=asking.body)))


async def consult_await(command: ConsultAwait, state: State, work: WorkingSet, services: Services) -> Outcome:
    """Asks the agent's own code first; what it does not answer is left to people."""
    question = state.questions.open[command.id]
    code = (work.toolbox or EMPTY).code
    answer: CodeAnswer | None = None
    asked = question_of(command.index, work)
    approvers = () if asked is None or question.kind == "clarification" else asked.approvers
    if code is not None and (not approvers or any(one.startswith("hook:") for one in approvers)):
        call = pending_call(command.index, state, work, turn=command.turn)
        prompt, options = ("", ()) if asked is None else (asked.prompt, asked.options)
        if question.kind == "clarification" and (hint := work.conversation.turn.hints.get(command.index)) is not None:
            prompt = hint.clarifying_question or prompts.failure.ask_what_to_call(call.name)
        assert question.kind != "call"
        pending = PendingAwait(command.id, question.kind, prompt, options, call, () if asked is None else asked.parts)
        answer = await code.answer_await(pending)
    if answer is None or not may_decide(approvers, answer.by):
        return Outcome(Draft(AwaitPassed(command.id)))
    present = work.conversation.turn.args[command.index]
    final = present if answer.args is None else answer.args
    try:
        value = UNSET if answer.value is None else Raw(canonical_value(answer.value))
    except NotCanonical as error:
        logger.error("run %s: the answer of %s is not JSON: %s", work.run_id, answer.by, error)
        return Outcome(Draft(AwaitPassed(command.id)))
    changed = UNSET if final == present else Raw(final)
    if question.kind == "plan":  # as in `answering.closing`
        body, final = bodies.AnswerBody(UNSET, value if changed is UNSET else changed, answer.reason), present
    else:
        body = bodies.AnswerBody(changed, value, answer.reason)
    head = AwaitClosed(command.turn, command.index, command.id, answer.outcome, answer.by, digest(final))
    return Outcome(Draft(head, bodies.encode(body)))


async def check_output(command: CheckOutput, work: WorkingSet) -> Outcome:
    code = (work.toolbox or EMPTY).code
    problem = "" if code is None else await code.check_output(work.conversation.last_text)
    if not problem:
        return Outcome(Draft(OutputAccepted(command.turn)))
    return Outcome(Draft(OutputRejected(command.turn), bodies.encode(bodies.TextBody(problem))))
