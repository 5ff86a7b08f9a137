"""Opening a store. The implementations behind these functions are imported on first use."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weftline.store.base import ReadStore, Store
    from weftline.store.rows import Copied, Salvaged
    from weftline.store.sqlite.directory import Owner


def open_store(path: Path | str, *, create: bool = True, check: bool = False) -> Store:
    """Opens the store in this directory as its one owner; with `create`, creates it if it does not exist.

    Blocks for a few milliseconds; with `check`, looks for damage first, for a second at most. Raises `StoreError`; its
    code is `store_in_use` while another process is the owner.
    """
    from weftline.store.sqlite.store import SqliteStore

    return SqliteStore(path, create=create, check=check)


async def open_store_off_loop(path: Path | str) -> Store:
    """`open_store` in a thread, with `check`. If the caller is cancelled in the meantime, the store is closed again."""
    import asyncio  # already imported if a loop is running

    opening = asyncio.ensure_future(asyncio.to_thread(open_store, path, check=True))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(Exception):
            await (await opening).close()
        raise


def open_for_reading(path: Path | str) -> ReadStore:
    """Opens a store for reading, alongside its owner if it has one. Raises `StoreError` if there is no store."""
    from weftline.store.sqlite.store import SqliteReadStore

    return SqliteReadStore(path)


def restore_store(backup: Path, path: Path) -> Copied:
    """Turns a backup into a store at a path that has none. The store is held.

    Raises `StoreError` if the backup is damaged, from a newer version, or not a backup.
    """
    from weftline.store.sqlite.backup import restore

    return restore(backup, path)


def salvage_store(path: Path, to: Path) -> Salvaged:
    """Copies what can be read of a damaged store, which nobody may be using, to a new one. The copy is held.

    Raises `StoreError` if nothing can be read.
    """
    from weftline.store.sqlite.salvaging import salvage

    return salvage(path, to)


def owner_of(path: Path | str) -> Owner | None:
    """The process that last opened the store: the owner, if it is still alive."""
    from weftline.store.sqlite.directory import StoreDirectory

    return StoreDirectory(Path(path), create=False).owner()
