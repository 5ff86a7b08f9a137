"""Who may see and use which agents, stored ones and those of the server's code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from weftline.errors import (
    LOG_DAMAGED,
    Forbidden,
    NotFound,
    StoreError,
    invalid_field,
)
from weftline.spec.tools import client_side_tools
from weftline.store.database import Query
from weftline.store.records import agents, prompt_overrides
from weftline.store.records.agents import AgentRow, AgentSummary
from weftline.store.records.pages import RowPage
from weftline.store.records.prompt_overrides import PromptOverrideRow
from weftline.work.heavy import parsed
from weftline.workspace.context import Caller, Workspaces

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


async def of_workspace(at: Workspaces, workspace: int) -> list[AgentSummary]:
    """All agents: stored ones first, oldest first, then those defined in code."""
    return [*await at.records.read(agents.of_workspace(workspace)), *at.code.rows(workspace)]


async def ids_by_slug(at: Workspaces, slug: str) -> tuple[str, ...]:
    """The ids of the agents with this slug, in all workspaces."""
    return await at.records.read(agents.ids_by_slug(slug))


async def find(at: Workspaces, workspace: int, name: str) -> AgentRow:
    """The agent with this id or slug. Raises `NotFound`."""
    return at.code.find(name, workspace=workspace) or await at.records.read(existing(name, workspace=workspace))


async def visible(at: Workspaces, caller: Caller, *, after: int = 0, limit: int) -> RowPage[AgentRow]:
    """A page of the agents that the caller can see: those of its allow-list, or else all, including system agents."""
    ids = tuple(caller.agents)
    stored = await at.records.read(
        agents.page(workspace=caller.workspace, after=after, limit=limit, ids=ids), heavy=True
    )
    return at.code.after(stored, workspace=caller.workspace, after=after, limit=limit, ids=ids)


async def find_visible(at: Workspaces, caller: Caller, name: str) -> AgentRow:
    """Like `find`, for agents that the caller can see."""
    row = await find(at, caller.workspace, name)
    if not _is_visible(caller, row):
        raise no_such_agent(name)
    return row


async def usable(at: Workspaces, caller: Caller) -> list[AgentSummary]:
    return [row for row in await of_workspace(at, caller.workspace) if _is_usable(caller, row)]


async def read(at: Workspaces, agent: AgentSummary) -> AgentRow | None:
    """The whole agent; None if it was deleted in the meantime."""
    if agent.id in at.code:
        return at.code.find(agent.id, workspace=agent.workspace)
    return await at.records.read(agents.by_id(agent.id, workspace=agent.workspace))


async def id_of(at: Workspaces, workspace: int, name: str) -> str:
    """The id of the agent that a request names by its id or slug; anything else is returned unchanged.

    The caller is not checked here: a caller that may use an agent may use it by its id.
    """
    if (known := at.code.id_of(name)) is not None:
        return known
    if not SLUG.fullmatch(name):  # ids have an underscore, slugs do not
        return name
    return await at.records.read(agents.id_by_slug(name, workspace=workspace)) or name


async def use(at: Workspaces, caller: Caller, agent_id: str) -> AgentRow:
    """The agent, for a caller that may use it.

    Raises:
        NotFound: for an agent that the workspace does not have, even if another workspace does.
        Forbidden: for one that the caller may not use. A caller with an allow-list gets it for every
            other id, so that it learns nothing about other agents.
    """
    if not _ID.fullmatch(agent_id):
        raise invalid_field("agent_id", "this is not an agent id.")
    if caller.agents and agent_id not in caller.agents:
        raise _forbidden()
    if agent_id in at.code:
        return _require_usable(caller, at.code.find(agent_id, workspace=caller.workspace), agent_id)
    return _require_usable(caller, await at.records.read(agents.by_id(agent_id, workspace=caller.workspace)), agent_id)


async def use_by_slug(at: Workspaces, caller: Caller, slug: str) -> AgentRow:
    """Like `use`, for an agent that is addressed by its slug: one that the caller may not see does not exist."""
    row = at.code.by_slug(slug, workspace=caller.workspace)
    row = row or await at.records.read(agents.by_slug(slug, workspace=caller.workspace))
    if row is None or not _is_visible(caller, row):
        raise no_such_agent(slug)
    return _require_usable(caller, row, slug)


def _require_usable(caller: Caller, row: AgentRow | None, name: str) -> AgentRow:
    if row is None and not caller.agents:
        raise no_such_agent(name)
    if row is None or not _is_usable(caller, row):
        raise _forbidden()
    if row.damaged:  # it must not run in a different form
        raise StoreError(f"The agent {row.id} is damaged: its {row.damaged} cannot be read.", code=LOG_DAMAGED)
    return row


def require_named(caller: Caller, agent_id: str | None) -> None:
    """Raises `Forbidden` for a caller restricted to some agents that names none of them."""
    if not caller.agents or agent_id in caller.agents:
        return
    if agent_id is None:
        raise Forbidden("This credential is restricted to some agents.", hint="Name one of them in agent_id.")
    raise _forbidden()


def owns(caller: Caller, agent: str | None) -> bool:
    """Returns True if the caller may see what belongs to this agent, or to none."""
    return not caller.agents or agent in caller.agents


def no_such_agent(name: str) -> NotFound:
    return NotFound(f"This workspace has no agent {name[:128]!r}.", agent_id=name[:128])


def _is_visible(caller: Caller, row: AgentRow) -> bool:
    return owns(caller, row.id)


def _is_usable(caller: Caller, row: AgentSummary) -> bool:
    """An empty allow-list allows every agent except system agents."""
    return row.id in caller.agents if caller.agents else not row.system


def _forbidden() -> Forbidden:
    return Forbidden("This credential may not use that agent.", hint="Check the agent's id and the allow-list.")


def existing(name: str, *, workspace: int) -> Query[AgentRow]:
    row = yield from agents.by_id(name, workspace=workspace)
    if row is None:
        row = yield from agents.by_slug(name, workspace=workspace)
    if row is None:
        raise no_such_agent(name)
    return row


async def add_prompt_override(at: Workspaces, workspace: int, row: PromptOverrideRow) -> None:
    await at.records.write(prompt_overrides.insert(row, workspace=workspace))


async def prompt_overrides_of(at: Workspaces, workspace: int) -> list[PromptOverrideRow]:
    """Newest first."""
    return await at.records.read(prompt_overrides.of_workspace(workspace))


_MAX_KNOWN = 20_000


class UnattendedAgents:
    """Finds unattended agents: those whose tools the server itself can run, without a client.

    The answer is cached, as it takes reading an agent's whole definition.
    """

    def __init__(self, at: Workspaces) -> None:
        self._at = at
        self._known: dict[int, tuple[int, bool]] = {}
        """By the agent's key: when it was last updated, and whether it is unattended."""

    async def usable(self, caller: Caller) -> list[AgentSummary]:
        """Returns those that the caller may use, oldest first."""
        return [row for row in await usable(self._at, caller) if await self._is_unattended(row)]

    async def client_side_tools(self, row: AgentRow) -> Sequence[str]:
        """Returns the tools of an agent that a client must run; empty if it is unattended."""
        if self._known.get(row.key) == (row.updated_at, True):
            return ()
        found = await parsed(client_side_tools, row.spec)
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[row.key] = (row.updated_at, not found)
        return found

    async def _is_unattended(self, row: AgentSummary) -> bool:
        as_of, known = self._known.get(row.key, (-1, False))
        if as_of == row.updated_at:
            return known
        whole = await read(self._at, row)
        return whole is not None and not await self.client_side_tools(whole)
