# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Threads for reads that are too long for the loop, each with a connection of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw

from weftline.errors import StoreError
from weftline.store.sqlite.connection import connect, snapshot

T = TypeVar("T")

_THREADS = 2
"""Two, so that a list that walks many rows does not hold up the pages of streams."""


class ReaderThreads:
    """Connects on first use: most processes that read a store never need a thread."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._threads: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._connections: list[apsw.Connection] = []
        self._closed = False

    async def read(self, job: Callable[[apsw.Connection], T]) -> T:
        """Runs `job` on one snapshot."""
        if self._closed:
            raise StoreError("The store is closed.")
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="weftline-reader")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, job)

    def close(self) -> None:
        """Blocks until no read is under way."""
        self._closed = True
        if self._threads is not None:
            self._threads.shutdown()
        for db in self._connections:
            db.close()
        self._connections.clear()

    def _run(self, job: Callable[[apsw.Connection], T]) -> T:
        db: apsw.Connection | None = getattr(self._own, "db", None)
        if db is None:
            db = self._own.db = connect(self._database, read_only=True)
            self._connections.append(db)
        with snapshot(db):
            return job(db)
