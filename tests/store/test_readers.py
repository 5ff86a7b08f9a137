"""Readers beside many appenders see each log grow in order, and never anything late (S1)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event

import pytest

from weftline.errors import StoreError
from weftline.store import open_for_reading
from weftline.store.base import LogStore
from weftline.store.sqlite.database import ReaderThreads
from weftline.store.sqlite.store import SqliteStore
from weftline.testing.store import Chain, check_log
from weftline.testing.store.subject import create_workspace

from .kit import TIMEOUT_S

RUNS = 4
APPENDS = 24


async def test_read_during_store_close_is_refused_and_earlier_ones_answered(
    tmp_path: Path,
) -> None:
    with_database = SqliteStore(tmp_path / "store")
    threads = ReaderThreads(tmp_path / "store" / "weftline.db")
    go_on, begun = Event(), Event()

    def slow(db: object) -> str:
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        return "read"

    async with asyncio.timeout(TIMEOUT_S):
        reads = [asyncio.create_task(threads.read(slow)) for _ in range(4)]
        await asyncio.to_thread(begun.wait, TIMEOUT_S)
        closing = asyncio.create_task(asyncio.to_thread(threads.close))
        refused = 0
        while not refused:  # until the closing thread has begun
            read = asyncio.create_task(threads.read(lambda db: "read"))
            await asyncio.sleep(0)
            if read.done():
                with pytest.raises(StoreError, match="The store is closed"):
                    await read
                refused += 1
            else:
                reads.append(read)
        go_on.set()
        assert set(await asyncio.gather(*reads)) == {"read"}
        await closing
        await with_database.close()


async def append(log: LogStore, chain: Chain) -> None:
    """Hands over every write of a run without waiting, then waits for all of them."""
    told = [log.flush([chain.create(body=b"0")])]
    for number in range(1, APPENDS):
        told.append(log.flush([chain.append(b"%d" % number, deltas=[b"a", b"b"][: number % 3])]))
        await asyncio.sleep(0)
    for future in told:
        assert [result.outcome for result in await future] == ["ok"]


async def follow(path: Path, key: int, written: Event) -> list[int]:
    """The seqs of a run in the order in which they were seen, each look going on from the last seq."""
    reader = open_for_reading(path)
    seen: list[int] = []
    finished = False
    while not finished:
        finished = written.is_set()
        page = await reader.log.page(key, after=seen[-1] if seen else 0, max_bytes=2**20)
        for item in page.items if page else ():
            seen += range(item.seq, item.last_seq + 1)
    await reader.close()
    return seen


@pytest.mark.requirement("run.log.seq")
async def test_entries_never_appear_at_or_below_a_read_seq(tmp_path: Path) -> None:
    """S1: many appenders at once, a reader of each run that goes on from where it is."""
    path = tmp_path / "store"
    written = Event()
    store = SqliteStore(path)
    log = store.log
    workspace = await store.records.write(create_workspace("acme"))
    chains = [Chain(key, workspace, epoch=log.next_epoch()) for key in range(1, RUNS + 1)]
    async with asyncio.timeout(TIMEOUT_S):
        readers = [
            asyncio.create_task(asyncio.to_thread(asyncio.run, follow(path, chain.key, written))) for chain in chains
        ]
        try:
            await asyncio.gather(*[append(log, chain) for chain in chains])
        finally:
            written.set()
        for chain, reader in zip(chains, readers, strict=True):
            assert await reader == list(range(1, chain.seq))
            assert await check_log(log, chain.key) == [b"%d" % number for number in range(APPENDS)]
    await store.close()
