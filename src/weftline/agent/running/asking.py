"""Open questions to people, and the hooks that may answer in their place."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.json import decode

from weftline import prompts
from weftline.agent.hooking.around_calls import Listener
from weftline.agent.hooks import AwaitGate
from weftline.failure import Clarification
from weftline.kernel.bodies import decode_await
from weftline.kernel.entries import AwaitKind
from weftline.runtime import ids
from weftline.runtime.agent_code.code import CodeAnswer, PendingAwait
from weftline.store.rows import OpenAwait
from weftline.text.canonical import canonical_value
from weftline.tools.base import Tool
from weftline.work.outcomes import attempt

logger = logging.getLogger(__name__)


class Await(Struct, frozen=True, kw_only=True):
    """An open question to a person. See `Engine.awaits`."""

    run_id: str
    id: str
    kind: AwaitKind
    """`confirm`, `question`, `plan`, `clarification`, `doubt` (did a call that a crash cut off happen?), `deploy` (may
    the run continue with changed code?) or `budget` (is a limit raised?).

    The last two are not about a call: `args` has what has changed, or the limit and the amount spent.
    """
    question: str
    name: str
    """The name of the tool."""
    args: dict[str, Any]
    call_id: str
    options: tuple[str, ...] = ()
    clarification: Clarification | None = None
    """For a `clarification`: what the failed call lacks."""
    agent: str | None = None
    root_run_id: str
    """The run at the top, if a subagent asks the question."""
    opened_at: datetime
    deadline: datetime | None = None
    idempotency_key: str = ""
    """For a call in doubt: the idempotency key that its tool received."""
    called_at: datetime | None = None
    """For a call in doubt: when it began."""
    approvers: tuple[str, ...] = ()
    """Who may decide; empty means anybody."""


def to_await(one: OpenAwait) -> Await:
    body = decode_await(one.body)
    return Await(
        run_id=ids.run_id(one.run, one.salt),
        id=one.id,
        kind=one.kind,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # as the kernel wrote it
        question=body.prompt,
        name=body.name,
        args=decode(body.args, type=dict[str, Any]),
        call_id=body.call,
        options=body.options,
        clarification=body.clarification,
        agent=one.agent or one.name or None,
        root_run_id=ids.run_id(one.root, one.root_salt) if one.root_salt else ids.run_id(one.run, one.salt),
        opened_at=_time(one.opened_at),
        deadline=None if one.deadline_at is None else _time(one.deadline_at),
        idempotency_key=body.key,
        called_at=_time(body.called_at) if body.called_at else None,
        approvers=body.approvers,
    )


def _time(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC)


async def answer_by_code(
    asked: PendingAwait,
    listeners: Sequence[Listener],
    *,
    prepare: Callable[[Tool, str], Awaitable[bytes]],
    display_name: str,
) -> CodeAnswer | None:
    """Returns the decision of the first hook that makes one: the run's own hooks, then those of the runs above.

    A hook that fails counts as a denial. Returns None if no hook decides.
    """
    call = asked.call
    display_args: dict[str, Any] = decode(call.args, type=dict[str, Any]) if call.args else {}
    point = AwaitGate(
        turn=call.turn,
        id=asked.id,
        about=asked.kind,
        question=asked.prompt,
        call_id=call.id,
        tool=call.name,
        args=display_args,
        options=asked.options,
        display_name=display_name,
        parts=asked.parts,
    )
    for hooks, context in listeners:
        name, error = await hooks.ask(point, context, decided=lambda: point.decision is not None)
        if error is not None:
            return CodeAnswer("denied", f"hook:{name}", reason=prompts.calls.gate_failed(display_name))
        decision = point.decision
        if decision is None:
            continue
        if decision.args is None:
            return CodeAnswer(decision.outcome, f"hook:{name}", value=decision.value, reason=decision.reason)
        with attempt() as preparing:  # the tool's own code raises, or what the hook set
            assert call.tool is not None
            final = await prepare(call.tool, canonical_value(dict(decision.args)).decode())
            return CodeAnswer("approved", f"hook:{name}", args=final, reason=decision.reason)
        logger.error("the hook %s approved %s with arguments that do not fit: %s", name, call.name, preparing.error)
        return CodeAnswer("denied", f"hook:{name}", reason=prompts.calls.gate_failed(display_name))
    return None
