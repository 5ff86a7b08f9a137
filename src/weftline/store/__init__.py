"""Opening a store. What is behind these functions is imported when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weftline.store.base import ReadStore, Store
    from weftline.store.sqlite.directory import Owner


def open_store(path: Path | str, *, create: bool = True, check: bool = False) -> Store:
    """Opens the store in this directory as its one owner; with `create`, makes it if it is new.

    Blocks for some milliseconds; with `check`, looks for damage first, for a second at most. Raises `StoreError`; its
    code is `store_in_use` while another process is the owner.
    """
    from weftline.store.sqlite.store import SqliteStore

    return SqliteStore(path, create=create, check=check)


def open_for_reading(path: Path | str) -> ReadStore:
    """Opens a store beside its owner, if it has one. Raises `StoreError` if there is no store."""
    from weftline.store.sqlite.store import SqliteReadStore

    return SqliteReadStore(path)


def restore_store(backup: Path, path: Path) -> int:
    """Makes a store of a backup at a path where there is none; returns its size in bytes. It is held.

    Raises `StoreError` if the backup is damaged, of a newer version or not a backup.
    """
    from weftline.store.sqlite.backup import restore

    return restore(backup, path)


def owner_of(path: Path | str) -> Owner | None:
    """The process that opened the store last: the owner, if it still lives."""
    from weftline.store.sqlite.directory import StoreDirectory

    return StoreDirectory(Path(path), create=False).owner()
