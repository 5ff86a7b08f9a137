# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What is acknowledged outlives a power cut at any moment (S2, F80), and who sees an entry sees a durable one."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import settings
from msgspec import Struct

from failing_disks import PowerDisk, Unsynced, Wreck
from weftline.errors import StoreError
from weftline.store.base import LogReader
from weftline.store.sqlite.connection import connect
from weftline.testing.store import Chain

from .kit import Ledger, owned, pragma

FLUSHES = 24
KINDS: tuple[Unsynced, ...] = ("lost", "torn", "reordered", "kept")
EVERY_KIND = settings.get_current_profile_name() == "deep"


def kinds_of(cut: int) -> tuple[Unsynced, ...]:
    """Two after one flush, the other two after the next. A cut comes as a sync begins, and one when it is told."""
    return KINDS if EVERY_KIND else KINDS[cut // 2 % 2 :: 2]


class Cut(Struct):
    """The power goes at this moment: what is on the disk, what was told, and what a reader saw (run: next seq)."""

    wreck: Wreck
    told: Ledger
    seen: dict[int, int]


def cut_at_every_sync(path: Path) -> list[Cut]:
    """Three runs write; the power is cut as each sync begins and as each flush is acknowledged."""
    cuts: list[Cut] = []
    ledger = Ledger()
    chains: list[Chain] = []
    with PowerDisk() as disk, owned(path, vfs=disk.vfs) as store:
        store.write(pragma("wal_autocheckpoint = 25"))
        reader = connect(path / "weftline.db", read_only=True)

        def cut() -> None:
            rows: list[Any] = reader.execute("SELECT key, next_seq FROM runs").fetchall()
            cuts.append(Cut(disk.cut(), ledger.copy(), dict(rows)))

        disk.on_sync = cut
        for number in range(FLUSHES):
            if number % 8 == 0:
                chains.append(store.chain(len(chains) + 1))
                write = chains[-1].create(body=b"created %d" % number)
                writes = [write]
            else:
                writes = [chain.append(body_of(number, chain.key), deltas=[b"a", b"b"]) for chain in chains]
            ledger.begin(*writes)
            ledger.told(writes, store.commit(*writes))
            cut()
        disk.on_sync = None
        reader.close()
    return cuts


def body_of(number: int, key: int) -> bytes:
    """Some have a long string, which is a row of its own."""
    words = b"%d.%d " % (number, key)
    return b'{"text":"%s"}' % (words * 4_000) if number % 8 == 6 else words * (40 * number)


def losses(cuts: list[Cut], images: Path) -> list[str]:
    """What is wrong with the stores that the cuts left behind."""
    found: list[str] = []
    for number, cut in enumerate(cuts):
        for kind in kinds_of(number):
            image = images / f"{number}-{kind}"
            cut.wreck.restore(image, unsynced=kind)
            try:
                with owned(image) as store:
                    store.run(check(store.store.log, cut))
            except (AssertionError, StoreError) as error:
                found.append(f"{image.name}: {error}")
            except asyncio.CancelledError:
                found.append(f"{image.name}: the store stopped at its first write")
    return found


async def check(log: LogReader, cut: Cut) -> None:
    await cut.told.check(log)
    for key, seen in cut.seen.items():
        row = await log.run(key)
        assert row is not None and row.next_seq >= seen, f"run {key}: a reader saw what is gone"


@contextmanager
def unsafe(level: str) -> Generator[None]:
    """Plants `PRAGMA synchronous = level` in every connection made meanwhile; the store's own setting is ignored."""

    def weaken(db: apsw.Connection) -> None:
        db.execute(f"PRAGMA synchronous = {level}")

        def authorize(code: int, first: str | None, *_: str | None) -> int:
            setting = code == apsw.SQLITE_PRAGMA and first == "synchronous"
            return apsw.SQLITE_IGNORE if setting else apsw.SQLITE_OK

        db.authorizer = authorize

    apsw.connection_hooks.append(weaken)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(weaken)


@pytest.mark.requirement("run.log.durable_first")
def test_reported_facts_survive_a_power_cut_at_every_sync(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S1, S2, S3: unsynced writes lost, torn, reordered or kept; what was not told is there whole or not at all."""
    cuts = cut_at_every_sync(tmp_path / "store")
    assert len(cuts) > 2 * FLUSHES
    assert losses(cuts, tmp_path / "images") == []
    assert "is damaged" not in caplog.text, "what a power cut leaves is no damage"


@pytest.mark.parametrize("level", ["OFF", "NORMAL"])
def test_store_that_does_not_sync_its_commits_would_be_noticed(tmp_path: Path, level: str) -> None:
    """Planted bug "synchronous=OFF", which no killing of processes can show (E10)."""
    with unsafe(level):
        cuts = cut_at_every_sync(tmp_path / "store")
    assert len(losses(cuts, tmp_path / "images")) >= FLUSHES // 2


def test_the_store_syncs_before_anybody_is_told(tmp_path: Path) -> None:
    """S2: nothing of the log is left unsynced when a flush is acknowledged."""
    with PowerDisk() as disk, owned(tmp_path / "store", vfs=disk.vfs) as store:
        chain = store.chain()
        store.commit(chain.create())
        store.commit(chain.append(b"a"))
        assert [len(changes) for _, changes in disk.cut().files.values()] == [0, 0]
