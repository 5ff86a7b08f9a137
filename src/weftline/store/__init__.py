"""Where everything that must not be lost is kept. This module opens stores; `base` says what a store is."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weftline.store.base import Database
    from weftline.store.sqlite.directory import Owner
    from weftline.store.sqlite.store import SqliteStore


def open_store(path: Path | str) -> SqliteStore:
    """Opens the store in a directory, which is created if need be, and owns it until it is closed.

    Raises:
        StoreError: when it cannot be opened; with the code `store_in_use` when another process owns it.
    """
    from weftline.store.sqlite.store import SqliteStore

    return SqliteStore(path)


@contextmanager
def open_records(path: Path | str) -> Generator[Database]:
    """The records of a store that another process may own, for reading only."""
    from weftline.store.sqlite.store import open_for_reading, read_only

    reader = open_for_reading(path)
    try:
        yield read_only(reader)
    finally:
        reader.close()


def owner_of(path: Path | str) -> Owner | None:
    """The process that owns a store, or owned it last; None if nobody ever did."""
    from weftline.store.sqlite.directory import StoreDirectory

    return StoreDirectory(Path(path)).owner()
