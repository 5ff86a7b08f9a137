# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A store of one's own with blocking flushes, a ledger of what was told, and processes that own a store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

import apsw

from weftline.store.base import RunWrite, Written
from weftline.store.sqlite.accounts import workspace_key
from weftline.store.sqlite.store import SqliteStore
from weftline.testing.store import StoreReads, check_log

T = TypeVar("T")

TIMEOUT_S = 120


class Owned:
    """A store whose fatal stops are noted instead of carried out."""

    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        self.fatal: str | None = None
        self._told: SimpleQueue[list[Written] | None] = SimpleQueue()
        self._stop_waiting: Callable[[], object] = bool
        self.store = SqliteStore(path, vfs=vfs, on_fatal=self._stopped)
        self.workspace = self.job(lambda db: workspace_key(db, "acme", now=1))

    def commit(self, *writes: RunWrite) -> list[Written] | None:
        """What became of each write; None when nobody was told because the store had to stop."""
        self.store.flush(list(writes), lambda _, results: self._told.put(results))
        return self._told.get(timeout=TIMEOUT_S)

    def outcomes(self, *writes: RunWrite) -> list[str]:
        return [written.outcome for written in self.commit(*writes) or ()]

    def job(self, job: Callable[[apsw.Connection], T]) -> T:
        """The job's value; `CancelledError` when nobody was told because the store had to stop."""
        return asyncio.run(self._job(job))

    def nothing_was_told(self) -> bool:
        try:
            self._told.get_nowait()
        except Empty:
            return True
        return False

    def close(self) -> None:
        self.store.close()

    async def _job(self, job: Callable[[apsw.Connection], T]) -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(self.store.job(job))
        self._stop_waiting = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await task
        finally:
            self._stop_waiting = bool

    def _stopped(self, reason: str) -> None:
        self.fatal = reason
        self._stop_waiting()
        self._told.put(None)


@contextmanager
def owned(path: Path, *, vfs: str | None = None) -> Generator[Owned]:
    store = Owned(path, vfs=vfs)
    try:
        yield store
    finally:
        store.close()


def limit_pages(db: apsw.Connection, pages: int) -> None:
    """Lets the database grow by `pages` and no more: after that SQLite's answer is SQLITE_FULL."""
    count = db.execute("PRAGMA page_count").fetchall()[0][0]
    assert isinstance(count, int)
    db.execute(f"PRAGMA max_page_count = {count + pages}")


class Ledger:
    """What the requesters were told, to be held against what a store holds afterwards. Bodies must be unique."""

    def __init__(self) -> None:
        self._durable: dict[int, list[bytes]] = {}
        self._open: dict[int, list[bytes]] = {}

    def begin(self, *writes: RunWrite) -> None:
        """These were handed over and nobody was told: each may be there, whole, or not."""
        self._open = {write.key: _bodies(write) for write in writes}

    def told(self, writes: Sequence[RunWrite], results: Sequence[Written] | None) -> None:
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

    def check(self, read: StoreReads) -> None:
        """Asserts S1 to S4: acknowledged is there, refused is not, in order, without holes."""
        for key in self._durable.keys() | self._open.keys():
            told = self._durable.get(key, [])
            held = check_log(read, key)
            assert held in (told, told + self._open.get(key, [])), f"run {key} holds {len(held)}, told {len(told)}"


def _bodies(write: RunWrite) -> list[bytes]:
    return [entry[4] for entry in write.entries]


@contextmanager
def process(source: str, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """Another Python that runs `source`; killed at the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
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
