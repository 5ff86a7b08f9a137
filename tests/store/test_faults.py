# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""An error at every call that the store makes of the file system, one at a time (S1 to S4, F10, F11)."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import apsw
import pytest
from hypothesis import settings

from failing_disks import Call, FaultyDisk
from weftline.errors import StoreError
from weftline.store.sqlite.connection import migrations
from weftline.store.sqlite.store import SqliteStore
from weftline.testing.store import Chain
from weftline.testing.store.subject import create_workspace

from .kit import Ledger, Owned, owned, pragma

NEVER = 10**9
FOREVER = 10**9
MOST_STORIES = NEVER if settings.get_current_profile_name() == "deep" else 24
"""Of more calls, every second or third one fails."""

SMALL_CACHE = "cache_size = 10"
"""With a cache of a few pages a transaction writes to the log before its COMMIT, too."""


def flush_under(store: Owned, ledger: Ledger, chains: list[Chain], number: int) -> None:
    writes = [chain.append(b"%d.%d" % (number, chain.key) * (1 + 4_000 * (chain.key % 2))) for chain in chains]
    ledger.begin(*writes)
    results = store.commit(*writes)
    ledger.told(writes, results)
    for chain, write, result in zip(chains, writes, results or (), strict=False):
        if result.outcome != "ok":
            chain.take_back(write)


def copy_as_if_killed(path: Path, to: Path) -> None:
    """What a process killed now would leave. Another process reads: a plain open and close here drops the locks."""
    subprocess.run(["cp", "-r", str(path), str(to)], check=True)


def run_story(path: Path, disk: FaultyDisk, *, call: Call, code: int, nth: int, times: int = 1) -> str | None:
    """Three flushes of three runs with a fault in them; then the store is opened again and held against the ledger."""
    ledger = Ledger()
    store = Owned(path, vfs=disk.vfs)
    chains = [store.chain(key) for key in (1, 2, 3)]
    created = [chain.create(body=b"created %d" % chain.key) for chain in chains]
    ledger.told(created, store.commit(*created))
    store.write(pragma(SMALL_CACHE))
    disk.fail(call, code=code, nth=nth, times=times)
    killed: Ledger | None = None
    for number in range(3):
        flush_under(store, ledger, chains, number)
        if disk.hits and killed is None:
            killed = ledger.copy()
            copy_as_if_killed(path, path.with_suffix(".killed"))
        if store.fatal:
            break
    disk.heal()
    if not store.fatal:
        flush_under(store, ledger, chains, 9)
    store.close()
    with owned(path) as again:
        again.run(ledger.check(again.store.log))
        assert again.store.log.unclean is (store.fatal is not None)
    if killed is not None:
        with owned(path.with_suffix(".killed")) as image:
            image.run(killed.check(image.store.log))
    return store.fatal


def count(path: Path, disk: FaultyDisk, call: Call) -> int:
    """How often the story makes `call` when nothing fails."""
    assert run_story(path, disk, call=call, code=apsw.SQLITE_IOERR, nth=NEVER) is None
    return disk.calls[call, "-wal"]


def some_of(calls: int) -> range:
    return range(1, calls + 1, -(-calls // MOST_STORIES))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("xWrite", apsw.SQLITE_FULL),
        ("xWrite", apsw.SQLITE_IOERR_WRITE),
        ("xRead", apsw.SQLITE_IOERR_READ),
    ],
)
def test_an_error_of_any_one_call_leaves_what_was_told(tmp_path: Path, call: Call, code: int) -> None:
    """S1, S2, S3, S4."""
    with FaultyDisk() as disk:
        calls = count(tmp_path / "none", disk, call)
        assert calls > 0
        for nth in some_of(calls):
            fatal = run_story(tmp_path / str(nth), disk, call=call, code=code, nth=nth)
            assert disk.hits == 1
            assert fatal is None or code != apsw.SQLITE_FULL


def test_a_failed_sync_stops_the_process_and_nobody_is_told(tmp_path: Path) -> None:
    """S3, F11, E2: the outcome of a COMMIT that failed with an I/O error is unknown."""
    with FaultyDisk() as disk:
        calls = count(tmp_path / "none", disk, "xSync")
        for nth in range(1, calls + 1):
            fatal = run_story(tmp_path / str(nth), disk, call="xSync", code=apsw.SQLITE_IOERR_FSYNC, nth=nth)
            assert fatal is not None and "unknown" in fatal


def test_after_an_unknown_commit_the_store_acknowledges_nothing_more(tmp_path: Path) -> None:
    """S3, F11."""
    with FaultyDisk() as disk, owned(tmp_path / "store", vfs=disk.vfs) as store:
        chain = store.chain()
        store.commit(chain.create())
        disk.fail("xSync", code=apsw.SQLITE_IOERR_FSYNC)
        assert store.commit(chain.append(b"a")) is None
        disk.heal()

        async def flush_and_close() -> bool:
            late = store.store.log.flush([chain.append(b"b")])
            await store.store.close()
            return late.done()

        assert store.run(flush_and_close()) is False


def test_a_query_whose_commit_is_unknown_stops_the_process_too(tmp_path: Path) -> None:
    """S3, F11: keys and threads are written under the same rules as runs."""
    with FaultyDisk() as disk:
        store = Owned(tmp_path / "store", vfs=disk.vfs)
        disk.fail("xSync", code=apsw.SQLITE_IOERR_FSYNC)
        with pytest.raises(asyncio.CancelledError):
            store.write(create_workspace("other"))
        store.close()
        assert store.fatal is not None and "unknown" in store.fatal


def test_full_disk_refuses_everything_until_it_recovers(tmp_path: Path) -> None:
    """S3, S4, F77: no restart is needed."""
    with FaultyDisk() as disk:
        fatal = run_story(tmp_path / "store", disk, call="xWrite", code=apsw.SQLITE_FULL, nth=1, times=FOREVER)
        assert fatal is None and disk.hits > 3


@pytest.mark.parametrize(
    ("call", "file"),
    [("xOpen", ""), ("xOpen", "-wal"), ("xRead", ""), ("xWrite", "-wal"), ("xSync", "-wal"), ("xSync", "")],
)
def test_error_while_a_store_migrates_leaves_a_whole_version(tmp_path: Path, call: Call, file: str) -> None:
    """F78: whatever the first start left, the next one carries on from it."""
    with FaultyDisk() as disk:
        disk.fail(call, code=apsw.SQLITE_IOERR, nth=NEVER, file=file)
        store = SqliteStore(tmp_path / "none", vfs=disk.vfs)
        disk.heal()
        asyncio.run(store.close())
        calls = disk.calls[call, file]
        assert calls > 0
        for nth in some_of(calls):
            path = tmp_path / str(nth)
            disk.fail(call, code=apsw.SQLITE_IOERR, nth=nth, file=file)
            with pytest.raises(StoreError) as told:
                SqliteStore(path, vfs=disk.vfs)
            assert told.value.code == "store_unusable"
            disk.heal()
            with owned(path) as again:
                assert again.write(pragma("user_version")) == migrations()[-1][0]
