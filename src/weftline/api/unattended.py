"""Unattended agents: those whose tools the server itself can run, without a client."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.api.parsing import parsed
from weftline.spec.tools import client_side_tools
from weftline.store.records.agents import AgentRow, AgentSummary
from weftline.workspace import agents
from weftline.workspace.context import Caller, Workspaces

_MAX_KNOWN = 20_000


class UnattendedAgents:
    """Finds unattended agents, and caches the answer, as it takes reading an agent's whole definition."""

    def __init__(self, at: Workspaces) -> None:
        self._at = at
        self._known: dict[int, tuple[int, bool]] = {}
        """By the agent's key: when it was last updated, and whether it is unattended."""

    async def usable(self, caller: Caller) -> list[AgentSummary]:
        """Returns those that the caller may use, oldest first."""
        return [row for row in await agents.usable(self._at, caller) if await self._is_unattended(row)]

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
        whole = await agents.read(self._at, row)
        return whole is not None and not await self.client_side_tools(whole)
