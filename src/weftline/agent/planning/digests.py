"""Digests of the prompt, tools and code that an agent's runs depend on, computed once per agent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from weftline.agent.agent_tools import is_toolset, name_of
from weftline.agent.definition import Definition
from weftline.agent.subagents import Subagent
from weftline.kernel.control import Digests
from weftline.plan import RunPlan
from weftline.tools.base import Tool, Toolset
from weftline.tools.digests import declared, digest, source_of, written


class _Known(Struct, frozen=True):
    """The cached digests of an agent, valid while its `basis` is unchanged."""

    basis: tuple[object, ...]
    tools: tuple[tuple[str, str, str], ...]
    """The name, the digest of the declaration and the digest of the source of each tool."""
    hooks: str
    whole: Digests


class AgentDigests:
    """The digests of agents. `version` is the operator's version of the code, used instead of its source."""

    def __init__(self) -> None:
        self.version: str | None = None
        self._known: WeakKeyDictionary[Definition[Any, Any], _Known] = WeakKeyDictionary()

    def names(self, agent: Definition[Any, Any]) -> list[str]:
        """Returns the names of its tools and toolsets."""
        return [name for name, _, _ in self._known_of(agent).tools]

    def of(self, agent: Definition[Any, Any], plan: RunPlan, *, only: Collection[str] | None = None) -> Digests:
        """Returns the digests that a run with this plan depends on. `only` has the names of its tools; None means all.

        A plan without digests is that of a new run; if its prompt is not the agent's, the caller gave it.
        """
        known = self._known_of(agent)
        found = known.whole
        if only is not None:
            found = self._digests(found.prompt, [one for one in known.tools if one[0] in only], known.hooks)
        begun = plan.digests
        given = begun.given if begun is not None else plan.system is not None and plan.system != agent.instructions
        return replace(found, prompt=digest("text", plan.system or ""), given=True) if given else found

    def _known_of(self, agent: Definition[Any, Any]) -> _Known:
        basis = (agent.tools, agent.instructions, len(agent.hooks), agent.policy_engine, self.version, agent.seats)
        known = self._known.get(agent)
        if known is not None and known.basis == basis:
            return known
        tools = tuple([_tool(one, agent) for one in agent.tools])
        hooks = digest(*[part for one in agent.hooks for part in (one.point.name, source_of(one.fn))])
        if agent.policy_engine is not None:
            hooks = digest(hooks, source_of(agent.policy_engine))
        whole = self._digests(_prompt(agent), tools, hooks)
        self._known[agent] = known = _Known(basis, tools, hooks, whole)
        return known

    def _digests(self, prompt: str, tools: Sequence[tuple[str, str, str]], hooks: str) -> Digests:
        tools = sorted(tools)
        code = [hooks, *[part for name, _, source in tools for part in (name, source)]]
        if self.version is not None:
            code = ["version", self.version]
        return Digests(prompt, digest(*[declared for _, declared, _ in tools]), digest(*code))


def below(
    agent: Definition[Any, Any], path: Sequence[str]
) -> tuple[Definition[Any, Any], frozenset[str] | None] | None:
    """Returns the agent at the end of a path of subagents, and the names of its tools (None means all).

    Returns None if that is unknown without opening toolsets.
    """
    only: frozenset[str] | None = None
    for step in path:
        found = [one for one in agent.tools if isinstance(one, Subagent) and one.name == step]
        if not found:
            return None
        if found[0].agent is not None:
            agent, only = found[0].agent, None
        elif found[0].only is not None:
            only = found[0].only if only is None else only & found[0].only
    return agent, only


def joined(own: Digests, others: Digests | None) -> Digests:
    """Returns the digests of an agent's run that also has tools of the server."""
    if others is None:
        return own
    return replace(own, tools=digest(own.tools, others.tools), code=digest(own.code, others.code))


def _prompt(agent: Definition[Any, Any]) -> str:
    made = agent.instructions
    if made is None or isinstance(made, str):
        return digest("text", made or "", *[one.system for one in agent.seats[1:]])
    return digest("code", source_of(made))


def _tool(one: Tool | Toolset, agent: Definition[Any, Any]) -> tuple[str, str, str]:
    """Returns a tool's name and digests.

    The tools of a toolset may change at any time, so it is identified by its name.
    """
    if is_toolset(one):
        name = name_of(one) or type(one).__name__
        return name, digest(name, getattr(one, "prefix", "")), digest()
    name = one.spec.name
    return name, digest(declared(one), agent.tool_aliases.get(name, "")), written(one)
