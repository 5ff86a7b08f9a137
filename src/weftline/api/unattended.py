"""Agents that need no client: those whose tools the server can all run by itself."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.api.parsing import parsed
from weftline.store.records.agents import AgentRow, AgentSummary
from weftline.wire.agents import client_side_tools
from weftline.workspace import agents
from weftline.workspace.context import Caller, Workspaces

_MAX_KNOWN = 20_000


class UnattendedAgents:
    """Tells them from the others, and remembers it: it takes reading the whole definition of an agent."""

    def __init__(self, at: Workspaces) -> None:
        self._at = at
        self._known: dict[int, tuple[int, bool]] = {}
        """By the agent's key: as of when, and whether it is one."""

    async def usable(self, caller: Caller) -> list[AgentSummary]:
        """Those that the caller may use, the oldest first."""
        return [row for row in await agents.usable(self._at, caller) if await self._is_one(row)]

    async def client_side_tools(self, row: AgentRow) -> Sequence[str]:
        """The tools of an agent that somebody else must run; none if it is unattended."""
        if self._known.get(row.key) == (row.updated_at, True):
            return ()
        found = await parsed(client_side_tools, row.spec)
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[row.key] = (row.updated_at, not found)
        return found

    async def _is_one(self, row: AgentSummary) -> bool:
        as_of, known = self._known.get(row.key, (-1, False))
        if as_of == row.updated_at:
            return known
        whole = await agents.read(self._at, row)
        return whole is not None and not await self.client_side_tools(whole)
