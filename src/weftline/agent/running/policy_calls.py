"""Asks the policy engine of an agent about a turn."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from functools import partial
from typing import Annotated, Any, TypeAlias, cast

from msgspec import Meta, Struct, convert

from weftline.agent.context import RunInfo
from weftline.agent.hooking.around_calls import object_of
from weftline.agent.settings import Caps, OfferedTool, PolicyDecision, PolicyEngine, PolicyTurn, RequestedCall
from weftline.runtime.agent_code.code import Judged, PendingTurn
from weftline.tools.base import Tool, title_of
from weftline.tools.workers import shared_workers

_Left: TypeAlias = Annotated[int, Meta(ge=0)] | None


class _Caps(Struct):
    tool_calls: _Left
    consecutive_failures: _Left


class _Decision(Struct):
    """The expected shape of a decision, to validate what user code returns."""

    allowed_tools: tuple[str, ...] | None
    caps: _Caps
    disable_tools: bool
    labels: dict[str, str]
    metadata: dict[str, Any]


async def ask_policy(engine: PolicyEngine | None, turn: PendingTurn, info: RunInfo) -> Judged:
    """Asks the engine about a turn.

    Raises whatever the engine raises, and an error if there is no engine or its decision is malformed.
    """
    if engine is None:
        raise TypeError("the agent no longer has a policy engine")
    asked = PolicyTurn(
        run=info,
        turn=turn.turn,
        calls=[RequestedCall(call.id, call.name, object_of(call.args)) for call in turn.calls],
        tools=[_offered(tool) for tool in turn.tools],
        left=Caps(turn.calls_left, turn.failures_left),
        labels=dict(turn.labels),
        unavailable=turn.unavailable,
        hint=turn.hint,
    )
    # A synchronous engine may block, on a file or a rule server, so it runs in a thread like a synchronous tool.
    answered = engine(asked) if _is_async(engine) else await shared_workers().run(partial(engine, asked))
    answer = cast(object, await answered if isinstance(answered, Awaitable) else answered)
    if not isinstance(answer, PolicyDecision):
        raise TypeError(f"a policy engine returns a PolicyDecision, not {type(answer).__name__}")
    decision = convert(
        {**vars(answer), "labels": dict(answer.labels), "metadata": dict(answer.metadata)},
        _Decision,
        from_attributes=True,
    )
    return Judged(
        decision.allowed_tools,
        decision.caps.tool_calls,
        decision.caps.consecutive_failures,
        decision.disable_tools,
        decision.labels,
        decision.metadata,
    )


def _offered(tool: Tool) -> OfferedTool:
    return OfferedTool(tool.spec.name, tool.spec.description, tool.traits.tags, title_of(tool))


def _is_async(engine: PolicyEngine) -> bool:
    """Returns True for a coroutine function, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(engine) or inspect.iscoroutinefunction(type(engine).__call__)
