"""The context of every use case."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from msgspec import Struct

from weftline.store.database import Database
from weftline.store.sealing import Hasher, Vault
from weftline.workspace.code_agents import NO_CODE, CodeAgents

if TYPE_CHECKING:
    from weftline.net.dial import Dialer


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""
        ...


ChangeKind: TypeAlias = Literal["budgets", "credentials", "effects", "logins", "providers", "schedules", "webhooks"]


class Change(Struct, frozen=True):
    """Something that is cached in memory has changed and must be read again."""

    kind: ChangeKind
    workspace: int | None = None
    """None if it may affect every workspace."""
    by: str = ""
    """Who has changed it, if that has to be reported."""


OnChange: TypeAlias = Callable[[Change], Awaitable[None]]


async def ignore_changes(change: Change) -> None:
    """For a process that caches nothing."""


class FileLimits(Struct, frozen=True, kw_only=True):
    """How much the files of a thread may be, and those of all threads of a workspace."""

    file_bytes: int = 256 * 1024 * 1024
    thread_bytes: int = 1024 * 1024 * 1024
    thread_files: int = 20_000
    """Folders count too."""
    workspace_bytes: int = 20 * 1024 * 1024 * 1024


class Workspaces(Struct, frozen=True, dict=True):
    """The stored things of all workspaces. `changed` is awaited after each durable change."""

    records: Database
    vault: Vault
    clock: Clock
    changed: OnChange = ignore_changes
    redirect_schemes: frozenset[str] = frozenset()
    """Schemes that the operator allows in redirect URIs of OAuth apps."""
    code: CodeAgents = NO_CODE
    """The agents that every workspace has because they are defined in this process's code."""
    files: FileLimits = FileLimits()
    dialer: Dialer | None = None
    """Reads what addresses in stored files name; None in a process that reaches none."""

    @cached_property
    def hasher(self) -> Hasher:
        """Hashes and signs the credentials of this store."""
        return self.vault.hasher()


class Caller(Protocol):
    """The caller: bound to one workspace, and restricted to the agents of its allow-list unless that is empty."""

    @property
    def workspace(self) -> int: ...
    @property
    def agents(self) -> tuple[str, ...]: ...
