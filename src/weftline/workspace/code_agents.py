"""Agents defined in the code of the process, not stored: every workspace has them, and they cannot be changed over
HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from weftline.errors import Conflict, InvalidRequest
from weftline.messages import OutputSchema
from weftline.plan import RunPlan
from weftline.spec.fields import RunSpec
from weftline.store.records.agents import AgentRow
from weftline.store.records.pages import RowPage

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
STORED_ID = re.compile(r"agent_[0-9a-f]{20}")
"""The form of ids of stored agents. No code agent has such a name."""
_FIRST_KEY = 10**17
"""Above the key of any record, so that code agents come last in lists."""


class ThreadRules(Protocol):
    """What an agent of a folder wants of its threads. `at` is the context of every use case, `engine` has its runs."""

    async def check(self, at: Any, workspace: int, /, *, user: str | None, env: Mapping[str, str]) -> None:
        """Raises `InvalidRequest` if a thread with these variables could not work."""
        ...

    async def begin(self, at: Any, engine: Any, row: Any, /) -> None:
        """Does what comes before the first message of a new thread. Waits for it only for a while."""
        ...


class CodeAgent(Struct, frozen=True, kw_only=True):
    name: str
    """Its id as well."""
    description: str = ""
    model: str | None = None
    instructions: str | None = None
    """None if code writes them for each run."""
    output: OutputSchema | None = None
    plan: Callable[[RunSpec], RunPlan]
    """Makes the plan of its run from what a client asks for."""
    threads: ThreadRules | None = None
    """For an agent whose runs all have a thread."""


def _no_spec(agent: CodeAgent) -> bytes:
    return b"{}"


class CodeAgents:
    """The code agents of a process, by name and by slug. `to_spec` returns what clients see of one: a run's spec."""

    def __init__(
        self, agents: Iterable[CodeAgent] = (), *, now_us: int = 0, to_spec: Callable[[CodeAgent], bytes] = _no_spec
    ) -> None:
        self._now_us = now_us
        self._to_spec = to_spec
        self._by_id: dict[str, CodeAgent] = {}
        self._slugs: dict[str, str] = {}
        for agent in agents:
            self._add(agent)

    def take(self, newer: CodeAgents) -> None:
        """Takes the agents of newer code instead of these."""
        self._by_id, self._slugs, self._now_us = newer._by_id, newer._slugs, newer._now_us
        self._to_spec = newer._to_spec

    def _add(self, agent: CodeAgent) -> None:
        name = agent.name
        if not _NAME.fullmatch(name) or STORED_ID.fullmatch(name):
            raise InvalidRequest(
                f"An agent cannot be served as {name!r}: use 1 to 64 letters, digits, _ and - for its name."
            )
        slug = slug_of(name)
        twin = self._slugs.setdefault(slug, name)
        if twin != name or name in self._by_id:
            raise Conflict(f"Two agents would be served as {slug!r}: {twin} and {name}.")
        self._by_id[name] = agent

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    @property
    def slugs(self) -> frozenset[str]:
        return frozenset(self._slugs)

    def id_of(self, name: str) -> str | None:
        """The id of the agent with this id or slug; `package/name` is that of a package."""
        packed = name.replace("-", "_").replace("/", "__") if "/" in name else name
        return packed if packed in self._by_id else self._slugs.get(name)

    def by_id(self, id: str | None) -> CodeAgent | None:
        return None if id is None else self._by_id.get(id)

    def find(self, name: str, *, workspace: int) -> AgentRow | None:
        """The agent with this id or slug, as a row of a workspace."""
        id = self.id_of(name)
        return None if id is None else self._row(id, workspace)

    def by_slug(self, slug: str, *, workspace: int) -> AgentRow | None:
        id = self._slugs.get(slug)
        return None if id is None else self._row(id, workspace)

    def rows(self, workspace: int, *, ids: tuple[str, ...] = ()) -> list[AgentRow]:
        """With `ids`, only those."""
        return [self._row(id, workspace) for id in self._by_id if not ids or id in ids]

    def after(
        self, stored: RowPage[AgentRow], *, workspace: int, after: int, limit: int, ids: tuple[str, ...] = ()
    ) -> RowPage[AgentRow]:
        """A page of stored agents, filled up with code agents if it is the last one."""
        if stored.more_after is not None or not self._by_id:
            return stored
        left = [row for row in self.rows(workspace, ids=ids) if row.key > after]
        taken = left[: limit - len(stored.rows)]
        rows = [*stored.rows, *taken]
        return RowPage(rows, rows[-1].key if rows and len(taken) < len(left) else None)

    def _row(self, id: str, workspace: int) -> AgentRow:
        return AgentRow(
            key=_FIRST_KEY + list(self._by_id).index(id),
            id=id,
            workspace=workspace,
            slug=slug_of(id),
            name=id,
            description=self._by_id[id].description,
            updated_at=self._now_us,
            system=False,
            spec=self._to_spec(self._by_id[id]),
            secrets=None,
            metadata="{}",
            created_at=self._now_us,
        )


NO_CODE = CodeAgents()


def slug_of(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "agent"


def is_code(row: AgentRow) -> bool:
    return row.key >= _FIRST_KEY


def read_only(name: str) -> Conflict:
    return Conflict(
        f"The agent {name!r} is defined in this server's code.",
        hint="Change it in its file and start the server again.",
    )
