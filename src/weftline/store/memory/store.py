"""The store in memory: both halves, and who owns the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from weftline.errors import StoreError
from weftline.store.copies import Copied
from weftline.store.memory.disk import MemoryDisk
from weftline.store.memory.log import MemoryLog
from weftline.store.secrets import Vault
from weftline.store.sqlite.database import MemoryDatabase, transact


class MemoryStore:
    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self._disk = disk or MemoryDisk()
        self._closed = False
        self.owner_epoch = self._disk.take_over()
        self.log = MemoryLog(self._disk, owner_epoch=self.owner_epoch, check_owner=self._check_owner)
        self.records = MemoryDatabase(self._disk.records, self._write)
        self.vault = Vault(Path(), key=self._disk.key)

    @property
    def folder(self) -> None:
        return None

    @property
    def outlives_process(self) -> bool:
        return False

    def announce(self, *, admin_socket: str = "", socket: str = "") -> None:
        """Does nothing: no other process can open a store in memory."""

    def remove_run(self, key: int) -> None:
        """Removes a run that has ended."""
        self._disk.remove(key)

    async def back_up(self, to: Path) -> Copied:
        raise StoreError("A store in memory has no backup.")

    async def shrink(self) -> int:
        return 0

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
