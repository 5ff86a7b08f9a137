"""What a run that names a stored agent becomes: agents are stored as the JSON that clients sent, and merged with it."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from weftline.api.parsing import off_loop
from weftline.store.records.agents import AgentRow
from weftline.store.secrets import Headers
from weftline.wire.agents import agent_spec_merge, names_of_tools
from weftline.workspace import agents
from weftline.workspace.context import Caller, Workspaces


class RunSpec(Struct, frozen=True):
    """What a run is made of."""

    spec: bytes
    headers: Headers
    """Secret headers of the tools that the server dials."""


async def effective(
    at: Workspaces, caller: Caller, agent_id: str | None, own: RunSpec, *, replaces: bool = False
) -> RunSpec:
    """The spec to run: the agent's, overridden by the request's own.

    A caller restricted to some agents must name one of them. `replaces`: one that may change the agent, and so its
    policy for a run; that of others is held to the agent's.
    """
    agents.require_named(caller, agent_id)
    if agent_id is None:
        return own
    agent = await agents.use(at, caller, agent_id)
    return await off_loop(partial(merged, at, agent, own, replaces=replaces), size=len(agent.spec) + len(own.spec))


def merged(at: Workspaces, agent: AgentRow, own: RunSpec, *, replaces: bool = False) -> RunSpec:
    """A request's spec over an agent's. A tool that the request replaces brings its own headers, or none."""
    if agent.id in at.code:
        # The code itself says what its runs start from, when there is one: what a session keeps would be out of date.
        return RunSpec(agent_spec_merge(b"{}", own.spec, id=agent.id, name=agent.name), own.headers)
    headers = at.vault.open_headers(agent.secrets, workspace=agent.workspace)
    if headers:
        replaced = names_of_tools(own.spec)
        headers = {name: values for name, values in headers.items() if name not in replaced}
    spec = agent_spec_merge(agent.spec, own.spec, id=agent.id, name=agent.name, replaces=replaces)
    return RunSpec(spec, {**headers, **own.headers})
