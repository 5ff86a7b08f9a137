"""Administrative commands, on the store itself or through the server that owns it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from weftline.api.control import send_request
from weftline.errors import StoreError, WeftlineError
from weftline.store import open_store, owner_of


def now_us() -> int:
    return time.time_ns() // 1000


def administer(db: Path, operation: str, **arguments: Any) -> Any:
    """Runs an operation and returns its value as JSON types.

    A missing store is never created, so that a mistyped path is noticed; only `weftline serve` creates one.
    """
    with _administration(db) as carry_out:
        return carry_out(operation, arguments)


def listed(db: Path, operation: str, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Yields the items of a list, page by page, so that a server need not hold all of them at once."""
    with _administration(db) as carry_out:
        after: int | None = 0
        while after is not None:
            page = carry_out(operation, {**arguments, "after": after})
            after = page["after"]
            yield from page["items"]


@contextmanager
def _administration(db: Path) -> Generator[Callable[[str, dict[str, Any]], Any]]:
    """Yields a function that runs operations on the store, or sends them to its owner."""
    try:
        store = open_store(db, create=False)
    except StoreError as error:
        if error.code != "store_in_use":
            raise
        yield partial(_through_owner, db, error)
        return
    # Only a store without a server needs these, and they take longer to load than most operations.
    from weftline.api.operations import operations
    from weftline.api.stored_logs import StoredLogs
    from weftline.runtime.clock import SystemClock
    from weftline.workspace.context import Workspaces

    with asyncio.Runner() as runner:
        logs = StoredLogs(store, folder=db)
        known = operations(Workspaces(store.records, store.vault, SystemClock()), logs, store)

        def here(operation: str, arguments: dict[str, Any]) -> Any:
            async def carry_out() -> Any:
                return await known[operation](**arguments)

            return msgspec.json.decode(msgspec.json.encode(runner.run(carry_out())))

        try:
            yield here
        finally:
            runner.run(store.close())


def ask_server(db: Path, operation: str) -> Any:
    """Returns the response of the server that owns the store; None if no server can answer."""
    try:
        owner = owner_of(db)
        if owner is not None and owner.admin_socket:
            return asyncio.run(send_request(owner.admin_socket, operation, {}))
    except (OSError, WeftlineError):
        pass
    return None


def _through_owner(db: Path, in_use: WeftlineError, operation: str, arguments: dict[str, Any]) -> Any:
    owner = owner_of(db)
    try:
        if owner is not None and owner.admin_socket:
            return asyncio.run(send_request(owner.admin_socket, operation, arguments))
    except OSError:
        pass
    raise StoreError(
        f"{in_use.message} It takes no commands at the moment: try again once it has started, or has ended.",
        code=in_use.code,
    )
