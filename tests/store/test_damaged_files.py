# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Files of the store that are damaged or cut: what is lost is said, and nothing is acknowledged on top of it."""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path

import pytest

from weftline.errors import StoreError
from weftline.store import open_store, salvage_store
from weftline.store.database import statement

from .kit import owned, pragma

FRAME = 24 + 4096


def killed_store(path: Path, image: Path, *, runs: int = 12) -> Path:
    """A store as `kill -9` leaves it, with one run in each of its last commits."""
    with owned(path) as store:
        for key in range(1, runs + 1):
            assert store.outcomes(store.chain(key).create()) == ["ok"]
        shutil.copytree(path, image)
    return image


def frames_of(store: Path) -> list[int]:
    """The number of each commit frame of the write-ahead log."""
    data = (store / "weftline.db-wal").read_bytes()
    salts = data[16:24]
    starts = range(32, len(data) - FRAME + 1, FRAME)
    heads = [data[at : at + 24] for at in starts]
    return [number for number, head in enumerate(heads) if head[8:16] == salts and any(head[4:8])]


def flip(file: Path, at: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        (byte,) = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))


def reopened(path: Path) -> list[int]:
    """The keys of the runs that a new owner finds."""
    with owned(path) as store:
        return [key for key in range(1, 13) if store.run(store.store.log.run(key)) is not None]


def lost_runs(caplog: pytest.LogCaptureFixture) -> tuple[int, ...] | None:
    """The commits, the lost runs and the shortened ones of the one line that speaks of them."""
    found = [line for line in caplog.messages if "write-ahead log" in line]
    if not found:
        return None
    assert len(found) == 1
    return tuple(int(number) for number in re.findall(r"(?:dropped|seen,|and) (\d+)", found[0]))


@pytest.mark.parametrize("where", ["page", "checksum", "salt"])
def test_commits_behind_a_flipped_bit_are_counted_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    store = killed_store(tmp_path / "store", tmp_path / "image")
    after_fourth_run = frames_of(store)[-8] - 1
    offset = {"page": 24 + 1000, "checksum": 17, "salt": 9}[where]
    flip(store / "weftline.db-wal", 32 + after_fourth_run * FRAME + offset)
    assert reopened(store) == [1, 2, 3, 4]
    assert lost_runs(caplog) == (8, 8, 0)
    caplog.clear()
    assert reopened(store) == [1, 2, 3, 4]
    assert lost_runs(caplog) is None, "it is said once"


def test_a_log_with_a_damaged_header_is_lost_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with owned(tmp_path / "store"):
        pass
    with owned(tmp_path / "store") as store:
        for key in range(1, 13):
            store.commit(store.chain(key).create())
        shutil.copytree(tmp_path / "store", tmp_path / "image")
    flip(tmp_path / "image" / "weftline.db-wal", 20)
    assert reopened(tmp_path / "image") == []
    found = lost_runs(caplog)
    assert found is not None and found[1:] == (12, 0)


@pytest.mark.parametrize("at", [1, 6, 10, 14, 17, 22, 26, 60, 5000])
def test_a_bit_in_the_first_log_of_a_new_store_is_reported(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tables are not in that log alone, so that the runs that were lost can be counted."""
    image = killed_store(tmp_path / "store", tmp_path / "image")
    flip(image / "weftline.db-wal", at)
    left = reopened(image)
    found = lost_runs(caplog)
    assert found is not None and found[1] == 12 - len(left) > 0


@pytest.mark.parametrize("cut", [100, 4096, 3 * 4096])
def test_a_database_that_was_cut_off_is_salvaged(tmp_path: Path, cut: int) -> None:
    with owned(tmp_path / "store") as store:
        for key in range(1, 401):
            store.commit(store.chain(key).create())
    database = tmp_path / "store" / "weftline.db"
    os.truncate(database, database.stat().st_size - cut)
    with pytest.raises(StoreError, match="weftline salvage"):
        open_store(tmp_path / "store", check=True)
    found = salvage_store(tmp_path / "store", tmp_path / "copy")
    assert found.whole + len(found.failing) > 200
    assert [one.name for one in (tmp_path / "copy").iterdir() if "cut" in one.name] == []


def test_entries_lost_from_an_older_run_are_counted_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with owned(tmp_path / "store") as store:
        chain = store.chain()
        store.commit(chain.create())
        for number in range(5):
            store.commit(chain.append(b"%d" % number))
        shutil.copytree(tmp_path / "store", tmp_path / "image")
    flip(tmp_path / "image" / "weftline.db-wal", 32 + frames_of(tmp_path / "image")[-3] * FRAME + 500)
    assert reopened(tmp_path / "image") == [1]
    assert lost_runs(caplog) == (3, 0, 1)


@pytest.mark.parametrize("kept", ["whole", "half a frame", "without its commit", "a hole before its commit"])
def test_a_last_commit_torn_by_a_crash_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: str
) -> None:
    store = killed_store(tmp_path / "store", tmp_path / "image")
    wal = store / "weftline.db-wal"
    *_, before, last = frames_of(store)
    match kept:
        case "half a frame":
            os.truncate(wal, 32 + last * FRAME + 2000)
        case "without its commit":
            os.truncate(wal, 32 + last * FRAME)
        case "a hole before its commit":
            with wal.open("r+b") as opened:
                opened.seek(32 + (before + 1) * FRAME)
                opened.write(bytes(FRAME))
        case _:
            pass
    assert len(reopened(store)) == (12 if kept == "whole" else 11)
    assert lost_runs(caplog) is None
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]


@pytest.mark.parametrize("file", ["weftline.db", "weftline.db-wal"])
@pytest.mark.parametrize("size", [0, 3 * 4096])
def test_nothing_is_acknowledged_once_a_file_was_cut(tmp_path: Path, file: str, size: int) -> None:
    with owned(tmp_path / "store") as store:
        store.write(pragma("wal_autocheckpoint = 20"))
        for key in range(1, 30):
            assert store.outcomes(store.chain(key).create()) == ["ok"]
        os.truncate(tmp_path / "store" / file, size)
        assert store.commit(store.chain(30).create()) is None
        assert store.fatal is not None and file in store.fatal and "cut" in store.fatal


def test_file_that_shrinks_by_itself_is_not_taken_for_cut(tmp_path: Path) -> None:
    with owned(tmp_path / "store") as store:
        store.write(pragma("wal_autocheckpoint = 1"))
        chain = store.chain()
        store.commit(chain.create())
        for _ in range(40):
            store.commit(chain.append(b"x" * 40_000))
        size = (tmp_path / "store" / "weftline.db").stat().st_size
        store.write(statement("DELETE FROM entries WHERE seq > 2"))
        assert store.run(store.store.shrink()) > 0
        while store.run(store.store.shrink()):
            pass
        assert store.outcomes(store.chain(2).create()) == ["ok"]
        assert (tmp_path / "store" / "weftline.db").stat().st_size < size / 2
