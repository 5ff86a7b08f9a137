"""Administration by command: on the store itself, or through the server that owns it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from weftline.errors import StoreError, WeftlineError
from weftline.server.control import send_order
from weftline.server.operations import OPERATIONS
from weftline.store.sqlite.directory import StoreDirectory
from weftline.store.sqlite.store import SqliteStore


def now_us() -> int:
    return time.time_ns() // 1000


def administer(db: Path, operation: str, **arguments: Any) -> Any:
    """Carries out an operation in one write transaction and returns its value."""
    try:
        store = SqliteStore(db)
    except StoreError as error:
        if error.code != "store_in_use":
            raise
        return _through_owner(db, operation, arguments, error)

    async def here() -> Any:
        return await store.job(lambda connection: OPERATIONS[operation](connection, **arguments))

    try:
        return asyncio.run(here())
    finally:
        store.close()


def _through_owner(db: Path, operation: str, arguments: dict[str, Any], in_use: WeftlineError) -> Any:
    owner = StoreDirectory(db).owner()
    if owner is None or not owner.admin_socket:
        raise in_use
    try:
        return asyncio.run(send_order(owner.admin_socket, operation, arguments))
    except OSError:
        raise in_use from None
