"""A store in memory: the same promises for as long as the process lives, and nothing on disk.

The log is plain dicts and lists; records are on SQLite in memory, with the same schema as everywhere. There is no
thread: a commit happens whole at one moment. What would outlive a process is a `MemoryDisk`, on which a simulation
opens one store after another:

    disk = MemoryDisk()
    first = MemoryStore(disk)
    second = MemoryStore(disk)  # as after a crash: `second.log.unclean` is true, and `first` writes nothing any more
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from weftline.errors import StoreError
from weftline.store.memory_disk import MemoryDisk
from weftline.store.memory_log import MemoryLog
from weftline.store.secrets import Vault
from weftline.store.sqlite.database import SqliteDatabase, transact

__all__ = ["MemoryDisk", "MemoryStore"]


class MemoryStore:
    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self._disk = disk or MemoryDisk()
        self._closed = False
        self.owner_epoch = self._disk.take_over()
        self.log = MemoryLog(self._disk, owner_epoch=self.owner_epoch, check_owner=self._check_owner)
        self.records = SqliteDatabase(self._disk.records, self._write)
        self.vault = Vault(Path(), key=self._disk.key)

    @property
    def folder(self) -> None:
        return None

    def announce(self, *, admin_socket: str) -> None:
        """Nobody else can open a store in memory, so there is nobody to tell."""

    async def close(self) -> None:
        if not self._closed and self._disk.owner_epoch == self.owner_epoch:
            self._disk.clean = True
        self._closed = True

    def _check_owner(self) -> None:
        if self._closed:
            raise StoreError("The store is closed.")
        if self._disk.owner_epoch != self.owner_epoch:
            raise StoreError("The store was opened by another owner.", code="store_in_use")

    async def _write(self, job: Callable[[Any], Any]) -> Any:
        self._check_owner()
        return transact(self._disk.records, job)
