"""The parts of a check: a new, empty store, and a few rows in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from weftline.errors import StoreError
from weftline.messages import Blob
from weftline.store.base import LogReader, LogStore, Store
from weftline.store.database import Query, one
from weftline.store.rows import IdempotencyKey, Item, NewRun, Progress, RunRow, ThreadEnd, Write, Written

EVERYTHING = 2**40


class Chain:
    """The writes of one run in order, each based on the previous one.

    Args:
        epoch: The epoch of the claim that they are made under; `LogStore.next_epoch()` for a run that is created.
    """

    def __init__(self, key: int, workspace: int, *, epoch: int, thread: int | None = None) -> None:
        self.key = key
        self.epoch = epoch
        self.seq = 1
        self.version = 0
        self.workspace = workspace
        self._thread = thread

    def create(
        self,
        *,
        body: bytes = b"{}",
        name: str = "",
        agent: str | None = None,
        family: int | None = None,
        metadata: str = "{}",
        rules: int = 1,
        secrets: bytes | None = None,
        idempotency: IdempotencyKey | None = None,
        blobs: tuple[Blob, ...] = (),
        salt: str = "salt",
    ) -> Write:
        """The first write of the run: its row and its first entry."""
        write = self.append(body, kind="run.created", status="queued", due_at=0)
        write.new = NewRun(
            salt=salt,
            workspace=self.workspace,
            name=name,
            metadata=metadata,
            created_at=1_000 + self.key,
            rules=rules,
            thread=self._thread,
            agent=agent,
            family=family,
            idempotency=idempotency,
            blobs=blobs,
            secrets=secrets,
        )
        return write

    def append(
        self,
        *bodies: bytes,
        kind: str = "call.closed",
        deltas: Sequence[bytes] = (),
        status: str = "running",
        due_at: int | None = 0,
        progress: Progress = Progress.NONE,
    ) -> Write:
        """One fact for each of `bodies`, and then `deltas` as one item. Facts come with a new state."""
        items = [Item(5_000, kind, b"{}", body) for body in bodies]
        if deltas:
            items.append(Item(5_000, "delta.text", b"", b"\n".join(deltas), len(deltas)))
        write = Write(
            self.key,
            self.epoch,
            self.seq,
            self.version,
            items,
            version=self.version + len(bodies),
            status=status,
            due_at=due_at,
            state=b"state %d" % (self.version + len(bodies)) if bodies else None,
            fold=1,
            progress=progress,
        )
        self.seq += len(bodies) + len(deltas)
        self.version = write.version
        return write

    def end(self, *, messages: Sequence[bytes] = (), ended_at: int = 9_000, status: str = "succeeded") -> Write:
        """The last write: the run has ended and leaves its thread, if it has one."""
        write = self.append(b"{}", kind="run.ended", status=status, due_at=None)
        write.ended_at = ended_at
        if self._thread is not None:
            write.thread_end = ThreadEnd(self._thread, list(messages))
        return write

    def take_back(self, write: Write) -> None:
        """After a refusal: the next write is based on what `write` was based on."""
        self.seq, self.version = write.base_seq, write.base_version


async def read_log(log: LogReader, key: int) -> list[Item]:
    """All items of a run, page by page."""
    items: list[Item] = []
    after = 0
    while (page := await log.page(key, after=after, max_bytes=EVERYTHING)) is not None:
        items += page.items
        if page.last_seq >= page.upto:
            break
        after = page.last_seq
    return items


async def check_log(log: LogReader, key: int) -> list[bytes]:
    """Asserts that the run's log is complete (every seq from 1 to the last once) and returns the bodies of its
    facts.
    """
    row = await log.run(key)
    items = await read_log(log, key)
    facts = await log.facts(key)
    if row is None:
        assert items == facts == [], f"run {key} has entries and no row"
        return []
    seqs = [seq for item in items for seq in range(item.seq, item.last_seq + 1)]
    assert seqs == list(range(1, row.next_seq)), f"the log of run {key} has a hole or a seq twice: {seqs}"
    assert all(item.body.count(b"\n") == item.count - 1 for item in items if item.count > 1)
    assert facts == [item for item in items if item.head]
    assert row.version == len(facts), f"the row of run {key} and its log do not belong together"
    return [fact.body for fact in facts]


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
