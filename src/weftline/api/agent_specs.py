"""The spec of a run that names a stored agent.

Agents are stored as clients' JSON, which is merged with the request's.
"""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from weftline.api.parsing import off_loop
from weftline.errors import Forbidden
from weftline.spec.merge import agent_spec, with_agent
from weftline.spec.tools import names_of_tools
from weftline.store.records.agents import AgentRow
from weftline.store.sealing import Headers
from weftline.wire.errors import as_sent, client_names
from weftline.workspace import agents
from weftline.workspace.code_agents import CodeAgent
from weftline.workspace.context import Caller, Workspaces


class RunSpec(Struct, frozen=True):
    """What a run is created from."""

    spec: bytes
    headers: Headers
    """Secret headers of the tools that the server connects to."""


def code_spec(agent: CodeAgent) -> bytes:
    """Returns what clients see of an agent that is defined in code, in the form of a run's spec."""
    return agent_spec(model=agent.model, instructions=agent.instructions, output=agent.output)


def require_named(caller: Caller, agent_id: str | None) -> None:
    """Raises `Forbidden` for a caller restricted to some agents whose request names none of them."""
    try:
        agents.require_named(caller, agent_id)
    except Forbidden as error:
        raise as_sent(error) from None


async def effective(
    at: Workspaces, caller: Caller, agent_id: str | None, own: RunSpec, *, replaces: bool = False
) -> RunSpec:
    """Returns the spec to run: the agent's, overridden by the request's own.

    A caller restricted to some agents must name one of them. `replaces` means that the caller may change the agent, and
    so replace its policy for a run; the policies of others stay within the agent's.
    """
    require_named(caller, agent_id)
    if agent_id is None:
        return own
    with client_names():
        agent = await agents.use(at, caller, agent_id)
    return await off_loop(partial(merged, at, agent, own, replaces=replaces), size=len(agent.spec) + len(own.spec))


def merged(at: Workspaces, agent: AgentRow, own: RunSpec, *, replaces: bool = False) -> RunSpec:
    """Merges a request's spec into an agent's. A tool that the request replaces has its own headers, or none."""
    if agent.id in at.code:
        # A code agent itself defines what its runs start from, as a session's copy would be out of date.
        return RunSpec(with_agent(b"{}", own.spec, id=agent.id, name=agent.name), own.headers)
    headers = at.vault.open_headers(agent.secrets, workspace=agent.workspace)
    if headers:
        replaced = names_of_tools(own.spec)
        headers = {name: values for name, values in headers.items() if name not in replaced}
    spec = with_agent(agent.spec, own.spec, id=agent.id, name=agent.name, replaces=replaces)
    return RunSpec(spec, {**headers, **own.headers})
