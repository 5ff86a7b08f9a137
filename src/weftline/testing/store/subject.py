"""The parts of a check: a new, empty store, and a few rows in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from weftline.errors import StoreError
from weftline.store.base import LogReader, LogStore, Store
from weftline.store.database import Query, one
from weftline.store.rows import RunRow, Write, Written
from weftline.testing.store.chain import Chain

TIMEOUT_S = 60


class Subject(Protocol):
    """A new, empty store."""

    @property
    def store(self) -> Store: ...

    async def reopen(self, *, cleanly: bool = True) -> None:
        """Closes the store, or lets its owner die, and opens it again; `store` is a new object afterwards."""
        ...

    async def take_over(self) -> Store:
        """Opens the store for another owner while this one still uses it, as after a freeze that looked like a death.

        `store` is the new owner's store. Returns the old owner's, which still takes calls; the caller closes it.
        """
        ...

    async def stopped(self) -> None:
        """Returns when the store would have ended the process of the owner that was replaced last. Never returns if
        it raises instead.
        """
        ...

    async def restore(self) -> None:
        """Closes the store and opens one that was restored from a backup of it. A store that has no backups is held as
        if it had been restored.
        """
        ...


Check: TypeAlias = Callable[[Subject], Awaitable[None]]


async def new_workspace(subject: Subject, slug: str = "acme") -> int:
    return await subject.store.records.write(create_workspace(slug))


async def new_thread(subject: Subject, workspace: int) -> int:
    return await subject.store.records.write(_create_thread(workspace))


async def new_chain(subject: Subject, key: int = 1, *, thread: int | None = None, body: bytes = b"{}") -> Chain:
    """A run that already exists, in a workspace that every run of this kind shares."""
    chain = chain_of(subject.store.log, key, await new_workspace(subject), thread=thread)
    assert outcomes(await commit(subject.store.log, chain.create(body=body))) == ["ok"]
    return chain


def chain_of(log: LogStore, key: int, workspace: int, *, thread: int | None = None) -> Chain:
    """The writes of a run that is yet to be created."""
    return Chain(key, workspace, epoch=log.next_epoch(), thread=thread)


async def commit(log: LogStore, *writes: Write) -> list[Written]:
    """Flushes `writes` and returns the outcome of each."""
    async with asyncio.timeout(TIMEOUT_S):
        return await log.flush(writes)


async def the_row(log: LogReader, key: int) -> RunRow:
    row = await log.run(key)
    assert row is not None, f"there is no run {key}"
    return row


async def due_times(log: LogReader, *keys: int) -> list[int | None]:
    return [(await the_row(log, key)).due_at for key in keys]


def outcomes(results: Sequence[Written]) -> list[str]:
    return [result.outcome for result in results]


def code(result: Written) -> str | None:
    return result.error.code if result.error else None


def unsealed(store: Store, sealed: bytes, *, place: str) -> bytes | None:
    """A secret of the vault; None if it cannot be decrypted."""
    try:
        return store.vault.open(sealed, place=place)
    except StoreError:
        return None


def create_workspace(slug: str) -> Query[int]:
    """Returns the workspace's key, creating the workspace if it is new."""
    row = yield from one(
        "INSERT INTO workspaces (slug, name, created_at) VALUES ($1, $1, $2)"
        " ON CONFLICT (slug) DO UPDATE SET name = excluded.name RETURNING key",
        slug,
        1,
    )
    assert row is not None
    return row[0]


def find_workspace(slug: str) -> Query[int | None]:
    row = yield from one("SELECT key FROM workspaces WHERE slug = $1", slug)
    return row[0] if row else None


def end_thread(thread: int) -> Query[None]:
    yield from one("UPDATE threads SET ended_at = $1 WHERE key = $2 RETURNING key", 2, thread)


def active_run(thread: int) -> Query[int | None]:
    row = yield from one("SELECT active_run FROM threads WHERE key = $1", thread)
    assert row is not None
    return row[0]


def _create_thread(workspace: int) -> Query[int]:
    row = yield from one(
        "INSERT INTO threads (salt, workspace, name, spec, metadata, created_at, last_used_at, next_place)"
        " VALUES ($1, $2, $3, $4, $5, $6, $6, 1) RETURNING key",
        "salt",
        workspace,
        "",
        b"{}",
        "{}",
        1,
    )
    assert row is not None
    return row[0]
