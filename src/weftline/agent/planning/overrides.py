"""A run with instructions or tools that replace its agent's."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, TypeVar

from weftline.agent.agent_tools import AgentTool, is_toolset, name_of
from weftline.agent.definition import Definition
from weftline.agent.options import LocalSpec, RunOptions
from weftline.agent.planning.plans import plan_of
from weftline.agent.settings import Settings
from weftline.errors import InvalidRequest
from weftline.kernel.bodies import encode
from weftline.plan import RunPlan
from weftline.tools.base import Tool, Toolset

A = TypeVar("A", bound=Definition[Any, Any])


def with_overrides(agent: A, options: RunOptions[Any]) -> A:
    """Returns the agent as one run uses it. Raises `ValueError` or `TypeError` for invalid tools."""
    instructions, tools = options.get("instructions"), options.get("tools")
    if instructions is None and tools is None:
        return agent
    return agent.with_overrides(instructions=instructions, tools=tools)


def added_toolsets(agent: Definition[Any, Any], other: Definition[Any, Any]) -> tuple[Toolset, ...]:
    """Returns the toolsets that `other` has and the agent does not."""
    own = {id(one) for one in agent.tools}
    return tuple([one for one in other.tools if is_toolset(one) and id(one) not in own])


def digest_of_call(agent: Definition[Any, Any], plan: RunPlan, options: RunOptions[Any], *, durable: bool) -> bytes:
    """Returns a digest of a call's input and options, to compare calls under the same key.

    The agent's own definition is not part of it: the next deployment may change its prompt, policy or limits, and a
    call repeated after that still means the same run.
    """
    nobody = Definition[Any, Any](name=agent.name)
    asked = LocalSpec(
        conversation=plan.messages,
        given=plan.given,
        limits=options.get("limits"),
        policy=options.get("policy"),
        behavior=options.get("behavior"),
        metadata=plan.metadata,
        labels=plan.labels,
        requested_by=plan.requested_by,
        **options.get("settings", Settings()).fields,
    )
    without = plan_of(
        with_overrides(nobody, {"instructions": options["instructions"]}) if "instructions" in options else nobody,
        asked,
        code=agent.name or "",
        model=plan.model if "model" in options else None,
        durable=durable,
    )
    tools = options.get("tools")
    names = None if tools is None else [name_of(one) for one in tools]
    rest = (options.get("thread"), names, *([options["run_id"]] if "run_id" in options else ()))
    return sha256(encode(without) + repr(rest).encode()).digest()


def own_tools(agent: Definition[Any, Any], given: Sequence[AgentTool[Any]]) -> list[Tool | Toolset]:
    """Returns the agent's own tools that a durable run is given.

    Raises `InvalidRequest` for any other tool: the process that continues the run would not have it.
    """
    found: list[Tool | Toolset] = []
    for one in given:
        same = [own for own in agent.tools if own is one or getattr(own, "__wrapped__", None) is one]
        if not same:
            raise InvalidRequest(
                f"A durable run cannot be given the tool {name_of(one) or one!r}: it is not one of its agent's, and the"
                " next process would not have it."
            )
        found += same
    return found


def require_text(instructions: object) -> None:
    """Raises `InvalidRequest` for instructions that a durable run cannot have."""
    if not isinstance(instructions, str | None):
        raise InvalidRequest(
            "The instructions of a durable run must be a string: the next process would not have a function."
        )
