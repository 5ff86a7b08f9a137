# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Threads for reads that are too long for the loop, each with a connection of its own.

Reads take turns, by workspace and then by run: neither a thousand readers of one long log nor all the reads of one
workspace block others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import apsw

from weftline.errors import StoreError
from weftline.store.sqlite.connection import connect, snapshot
from weftline.work.turns import RoundRobin, on_behalf_of

T = TypeVar("T")

_Waiting: TypeAlias = tuple[Callable[[apsw.Connection], Any], Future[Any]]

_THREADS = 2
"""Two, so that a list that walks many rows does not block the pages of streams."""


class ReaderThreads:
    """Connects on first use: most processes that read a store never need a thread."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._threads: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._lock = threading.Lock()
        self._waiting: RoundRobin[_Waiting] = RoundRobin()
        self._connections: list[apsw.Connection] = []
        self._closed = False

    async def read(self, job: Callable[[apsw.Connection], T], *, run: int | None = None) -> T:
        """Runs `job` on one snapshot. `run` is the key of the run whose log it reads, if it reads one."""
        future: Future[T] = Future()
        with self._lock:  # `close` is called in another thread
            if self._closed:
                raise StoreError("The store is closed.")
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="weftline-reader")
            self._threads.submit(self._next)
            self._waiting.put((job, future), owner=on_behalf_of.get(), topic=run)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Blocks until all reads have ended."""
        with self._lock:
            self._closed = True
        if self._threads is not None:
            self._threads.shutdown()
        for db in self._connections:
            db.close()
        self._connections.clear()

    def _next(self) -> None:
        """Runs the next waiting read, which need not be the one that scheduled this call."""
        with self._lock:
            job, future = self._waiting.take()
        if not future.set_running_or_notify_cancel():
            return
        try:
            value = self._run(job)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(value)

    def _run(self, job: Callable[[apsw.Connection], T]) -> T:
        db: apsw.Connection | None = getattr(self._own, "db", None)
        if db is None:
            db = self._own.db = connect(self._database, read_only=True)
            self._connections.append(db)
        with snapshot(db):
            return job(db)
