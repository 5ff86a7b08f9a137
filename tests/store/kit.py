"""A store of one's own with blocking flushes, a ledger of what was told, and processes that own a store."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from forked import python
from weftline.store.base import LogReader
from weftline.store.database import Query, statement
from weftline.store.rows import Write, Written
from weftline.store.sqlite.store import SqliteStore
from weftline.testing.store import Chain, check_log
from weftline.testing.store.subject import create_workspace

T = TypeVar("T")

TIMEOUT_S = 120


class Owned:
    """A store whose fatal stops are noted instead of carried out, used by a test that has no loop."""

    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        self.fatal: str | None = None
        self._runner = asyncio.Runner()
        self._waiting: asyncio.Task[None] | None = None
        try:
            self.store = SqliteStore(path, vfs=vfs, on_fatal=self._stopped)
        except BaseException:
            self._runner.close()
            raise
        try:
            self.workspace = self.write(create_workspace("acme"))
        except BaseException:
            self.close()
            raise

    def chain(self, key: int = 1) -> Chain:
        """The writes of a run that is to be created."""
        return Chain(key, self.workspace, epoch=self.store.log.next_epoch())

    def commit(self, *writes: Write) -> list[Written] | None:
        """What became of each write; None when nobody was told because the store had to stop."""
        try:
            return self.run(self._flush(writes))
        except asyncio.CancelledError:
            return None

    def outcomes(self, *writes: Write) -> list[str]:
        return [written.outcome for written in self.commit(*writes) or ()]

    def write(self, query: Query[T]) -> T:
        """The query's value; `CancelledError` when nobody was told because the store had to stop."""
        return self.run(self.store.records.write(query))

    def read(self, query: Query[T]) -> T:
        return self.run(self.store.records.read(query))

    def bodies(self, key: int) -> list[bytes]:
        """The facts of a run, whose log is checked."""
        return self.run(check_log(self.store.log, key))

    def close(self) -> None:
        self._runner.run(self.store.close())
        self._runner.close()

    def run(self, awaitable: Awaitable[T]) -> T:
        return self._runner.run(self._bounded(awaitable))

    async def _flush(self, writes: Sequence[Write]) -> list[Written]:
        return await self.store.log.flush(writes)

    async def _bounded(self, awaitable: Awaitable[T]) -> T:
        self._waiting = asyncio.current_task()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await awaitable
        finally:
            self._waiting = None

    def _stopped(self, reason: str) -> None:
        self.fatal = reason
        waiting = self._waiting
        if waiting is not None:
            self._runner.get_loop().call_soon_threadsafe(waiting.cancel)


@contextmanager
def owned(path: Path, *, vfs: str | None = None) -> Generator[Owned]:
    store = Owned(path, vfs=vfs)
    try:
        yield store
    finally:
        store.close()


def pragma(text: str) -> Query[object]:
    """Sets or asks something on the writer's connection."""
    rows = yield from statement(f"PRAGMA {text}")
    return rows[0][0] if rows else None


def limit_pages(pages: int) -> Query[None]:
    """Lets the database grow by `pages` and no more: after that SQLite's answer is SQLITE_FULL."""
    count = yield from pragma("page_count")
    assert isinstance(count, int)
    yield from pragma(f"max_page_count = {count + pages}")


class Ledger:
    """What the requesters were told, to be held against what a store holds afterwards. Bodies must be unique."""

    def __init__(self) -> None:
        self._durable: dict[int, list[bytes]] = {}
        self._open: dict[int, list[bytes]] = {}

    def begin(self, *writes: Write) -> None:
        """These were handed over and nobody was told: each may be there, whole, or not."""
        self._open = {write.key: _bodies(write) for write in writes}

    def told(self, writes: Sequence[Write], results: Sequence[Written] | None) -> None:
        if results is None:
            return
        self._open = {}
        for write, result in zip(writes, results, strict=True):
            if result.outcome == "ok":
                self._durable[write.key] = self._durable.get(write.key, []) + _bodies(write)

    def copy(self) -> Ledger:
        copy = Ledger()
        copy._durable, copy._open = {**self._durable}, {**self._open}
        return copy

    async def check(self, log: LogReader) -> None:
        """Asserts S1 to S4: acknowledged is there, refused is not, in order, without holes."""
        for key in self._durable.keys() | self._open.keys():
            told = self._durable.get(key, [])
            held = await check_log(log, key)
            assert held in (told, told + self._open.get(key, [])), f"run {key} holds {len(held)}, told {len(told)}"


def _bodies(write: Write) -> list[bytes]:
    return [item.body for item in write.items if item.head]


@contextmanager
def process(source: str, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """Another Python that runs `source`; killed at the end."""
    child = python("-c", source, *arguments)
    try:
        with child:
            try:
                yield child
            finally:
                child.kill()
    finally:
        child.wait(TIMEOUT_S)


def line(child: subprocess.Popen[str]) -> str:
    """The next line that the process prints."""
    assert child.stdout is not None
    return child.stdout.readline().strip()
