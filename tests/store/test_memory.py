"""What the store in memory has of its own: disks that outlive their stores."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weftline.errors import StoreError
from weftline.store.database import statement
from weftline.store.memory import MemoryDisk, MemoryStore
from weftline.testing.store import Chain, check_log
from weftline.testing.store.subject import create_workspace, find_workspace

from .kit import TIMEOUT_S

IMPORTS_THE_SUITE = """
import sys
import weftline.testing.store, weftline.store
print(sorted(name for name in sys.modules if name == "apsw" or name.startswith("weftline.store.sqlite")))
"""


async def test_a_store_that_was_replaced_writes_nothing_any_more() -> None:
    """S7: as a process that was taken for dead and is not."""
    disk = MemoryDisk()
    old = MemoryStore(disk)
    chain = Chain(1, await old.records.write(create_workspace("acme")), epoch=old.log.next_epoch())
    await old.log.flush([chain.create()])
    new = MemoryStore(disk)
    assert new.log.unclean and not old.log.unclean
    with pytest.raises(StoreError) as refused:
        old.log.flush([chain.append(b"late")])
    assert refused.value.code == "store_in_use"
    with pytest.raises(StoreError):
        await old.records.write(create_workspace("late"))
    await old.close()
    assert await check_log(new.log, 1) == [b"{}"]
    assert await new.records.read(find_workspace("late")) is None
    assert MemoryStore(disk).log.unclean, "the old owner marked the store as cleanly left"


async def test_stores_on_different_disks_share_nothing() -> None:
    first, second = MemoryStore(), MemoryStore()
    await first.records.write(create_workspace("acme"))
    assert await second.records.read(find_workspace("acme")) is None
    assert first.log.id != second.log.id


async def test_a_query_of_records_cannot_reach_into_the_log() -> None:
    """On SQLite it could, and would then fail on every other store."""
    with pytest.raises(StoreError):
        await MemoryStore().records.read(statement("SELECT key FROM runs"))


def test_the_suite_imports_no_database() -> None:
    """Whoever writes a store of another kind needs no SQLite to test it."""
    program = [sys.executable, "-c", IMPORTS_THE_SUITE]
    done = subprocess.run(program, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
