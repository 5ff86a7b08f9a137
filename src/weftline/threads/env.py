"""The variables of a thread: which of all the places that may give one a value does, and of which type it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from weftline.errors import WeftlineError
from weftline.store.database import Query
from weftline.store.records import thread_state
from weftline.store.records import threads as rows
from weftline.store.records.thread_state import WORKSPACE, EnvRow, EnvType, of_account, of_thread
from weftline.store.records.threads import ThreadRow
from weftline.workspace.context import Workspaces
from weftline.workspace.thread_state import opened

Defaults = Mapping[str, str]


class MissingVariable(WeftlineError):
    """No place gives this variable a value."""

    default_code = "missing_variable"


class Resolved(Struct, frozen=True):
    value: str
    type: EnvType


class Env:
    """Finds the variables of one thread.

    The first that has one counts: the thread, the threads above it, `defaults` in their order (the agent's, a tool
    entry's, the prompt's), the account, the workspace. Names in `scoped` are not taken from the threads above.
    """

    def __init__(
        self,
        at: Workspaces,
        thread: ThreadRow,
        *,
        defaults: Sequence[Defaults] = (),
        scoped: frozenset[str] = frozenset(),
    ) -> None:
        self._at = at
        self._thread = thread
        self.defaults = tuple(defaults)
        self.scoped = scoped

    @staticmethod
    async def stored_names(at: Workspaces, workspace: int, *, user: str | None) -> set[str]:
        """The names that a new thread of this user has values for, from its account and workspace."""

        def query() -> Query[set[str]]:
            found: set[str] = set()
            for owner in (WORKSPACE,) if user is None else (WORKSPACE, of_account(user)):
                found.update([row.name for row in (yield from thread_state.env_of(owner, workspace=workspace))])
            return found

        return await at.records.read(query())

    async def get(self, name: str) -> str:
        """Raises `MissingVariable`."""
        found = await self.find(name)
        if found is None:
            raise MissingVariable(f"The variable {name} has no value.", variable=name)
        return found.value

    async def find(self, name: str) -> Resolved | None:
        stored = await self._at.records.read(self._stored(name))
        return self._resolve(name, stored)

    async def type_of(self, name: str) -> EnvType:
        """The type of a variable; an unknown one is a secret."""
        stored = await self._at.records.read(self._stored(name))
        own = [row for row in stored if row.owner.startswith("thread:")]
        if own:
            return own[0].type
        if any(name in one for one in self.defaults):
            return "secret"
        return stored[0].type if stored else "secret"

    async def missing(self, names: Sequence[str]) -> list[str]:
        """Which of these have no value."""
        return [name for name in names if await self.find(name) is None]

    async def secrets(self) -> list[str]:
        """The values of all secrets that are stored for the thread, its account and its workspace."""
        thread, workspace = self._thread, self._thread.workspace

        def query() -> Query[list[EnvRow]]:
            found: list[EnvRow] = []
            for owner in (yield from self._owners()):
                found += yield from thread_state.env_of(owner, workspace=workspace)
            return found

        rows_ = await self._at.records.read(query())
        stored = [opened(self._at, thread.workspace, row) for row in rows_ if row.type == "secret"]
        return [*stored, *(value for one in self.defaults for value in one.values())]

    def _resolve(self, name: str, stored: Sequence[EnvRow]) -> Resolved | None:
        own = [row for row in stored if row.owner.startswith("thread:")]
        if own:
            return self._opened(own[0])
        for one in self.defaults:
            if name in one:
                return Resolved(one[name], "secret")
        return self._opened(stored[0]) if stored else None

    def _opened(self, row: EnvRow) -> Resolved:
        return Resolved(opened(self._at, self._thread.workspace, row), row.type)

    def _stored(self, name: str) -> Query[list[EnvRow]]:
        """The stored values under this name, in the order in which they count."""
        found: list[EnvRow] = []
        for owner in (yield from self._owners(name)):
            row = yield from thread_state.env(owner, name, workspace=self._thread.workspace)
            if row is not None:
                found.append(row)
        return found

    def _owners(self, name: str = "") -> Query[list[str]]:
        thread: ThreadRow | None = self._thread
        owners = [of_thread(self._thread.key)]
        while name not in self.scoped and thread is not None and thread.parent is not None:
            thread = yield from rows.by_key(thread.parent)
            owners += [] if thread is None else [of_thread(thread.key)]
        if self._thread.user is not None:
            owners.append(of_account(self._thread.user))
        return [*owners, WORKSPACE]
