# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Looking into the store of a running server, to see when it has got somewhere without asking it."""

from __future__ import annotations

import time

from bench.machine import Server
from weftline.store.sqlite.connection import connect
from weftline.store.sqlite.directory import StoreDirectory


def wait_for_count(server: Server, query: str, count: int, *, timeout_s: float = 60.0) -> float:
    """Returns the time at which `query`, a count, had reached `count`."""
    db = connect(StoreDirectory(server.process.db, create=False).database, read_only=True)
    deadline = time.perf_counter() + timeout_s
    try:
        while True:
            row = db.execute(query).fetchone()
            now = time.perf_counter()
            if row is not None and isinstance(row[0], int) and row[0] >= count:
                return now
            if now > deadline:
                raise RuntimeError(f"{row} instead of {count} after {timeout_s:g} s: {query}")
            time.sleep(0.005)
    finally:
        db.close()
