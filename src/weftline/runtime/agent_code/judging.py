"""Consults the policy engine of a run's agent about the calls of a turn, before any of them begins."""

from __future__ import annotations

import logging

from msgspec import UNSET, Raw

from weftline.kernel import bodies, policies
from weftline.kernel.policy import PolicyDecided
from weftline.kernel.state import ConsultPolicy, State
from weftline.runtime.agent_code.code import Judged, PendingTurn
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.services import Outcome
from weftline.runtime.tool_calls.tool_call import pending_call
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.tools.base import is_hidden
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
            [tool for name, tool in toolbox.tools.items() if name not in toolbox.excluded and not is_hidden(tool)]
        ),
        calls_left=None if most is None else max(most - state.policy.calls, 0),
        failures_left=None if most_failures is None else max(most_failures - state.policy.failures, 0),
        labels=work.plan.labels | work.conversation.labels,
        unavailable=work.conversation.calls.unavailable,
        hint=work.conversation.calls.last_hint,
    )
