"""Opening a store. What is behind these functions is imported when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weftline.store.base import ReadStore, Store
    from weftline.store.sqlite.directory import Owner


def open_store(path: Path | str, *, create: bool = True) -> Store:
    """Opens the store in this directory as its one owner, and makes it if it is new.

    Without `create` the directory must be there already. Blocks for some milliseconds. Raises `StoreError`; its code is
    `store_in_use` while another process is the owner.
    """
    from weftline.store.sqlite.store import SqliteStore

    return SqliteStore(path, create=create)


def open_for_reading(path: Path | str) -> ReadStore:
    """Opens a store beside its owner, if it has one. Raises `StoreError` if there is no store."""
    from weftline.store.sqlite.store import SqliteReadStore

    return SqliteReadStore(path)


def owner_of(path: Path | str) -> Owner | None:
    """The process that opened the store last: the owner, if it still lives."""
    from weftline.store.sqlite.directory import StoreDirectory

    return StoreDirectory(Path(path), create=False).owner()
