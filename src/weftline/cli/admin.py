"""Administration by command: on the store itself, or through the server that owns it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec

from weftline.errors import StoreError, WeftlineError
from weftline.runtime.clock import SystemClock
from weftline.server.control import send_order
from weftline.server.operations import StoredLogs, operations
from weftline.store import open_store, owner_of
from weftline.workspace.context import Workspaces


def now_us() -> int:
    return time.time_ns() // 1000


def administer(db: Path, operation: str, **arguments: Any) -> Any:
    """Carries out an operation and returns its value in JSON's own types.

    A missing store is never created, so that a mistyped path is noticed; only `weftline serve` creates one.
    """
    try:
        store = open_store(db, create=False)
    except StoreError as error:
        if error.code != "store_in_use":
            raise
        return _through_owner(db, operation, arguments, error)

    async def here() -> Any:
        try:
            at = Workspaces(store.records, store.vault, SystemClock())
            return await operations(at, StoredLogs(store.log), store)[operation](**arguments)
        finally:
            await store.close()

    return msgspec.json.decode(msgspec.json.encode(asyncio.run(here())))


def ask_server(db: Path, operation: str) -> Any:
    """The response of the server that owns the store; None if no server can answer."""
    try:
        owner = owner_of(db)
        if owner is not None and owner.admin_socket:
            return asyncio.run(send_order(owner.admin_socket, operation, {}))
    except (OSError, WeftlineError):
        pass
    return None


def _through_owner(db: Path, operation: str, arguments: dict[str, Any], in_use: WeftlineError) -> Any:
    owner = owner_of(db)
    if owner is None or not owner.admin_socket:
        raise in_use
    try:
        return asyncio.run(send_order(owner.admin_socket, operation, arguments))
    except OSError:
        raise in_use from None
