# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""An owner that was replaced, or whose log was taken away, stops before it acknowledges anything (S7, S8, F12)."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from weftline.store.sqlite import writer
from weftline.store.sqlite.connection import connect
from weftline.testing.store import Chain
from weftline.testing.store.subject import create_workspace, find_workspace

from .kit import TIMEOUT_S, Owned, owned, process

READS_AND_CLOSES = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("SELECT count(*) FROM runs").fetchall()
db.close()
"""


def take_over(path: Path) -> None:
    db = connect(path / "weftline.db")
    db.execute("UPDATE store SET owner_epoch = owner_epoch + 1")
    db.close()


def standard_sqlite_reads(path: Path) -> None:
    """E4: the standard library's SQLite does not know of ours in the same process, and thinks it is alone."""
    db = sqlite3.connect(path / "weftline.db")
    db.execute("SELECT count(*) FROM runs").fetchall()
    db.close()


def another_process_reads(path: Path) -> None:
    with process(READS_AND_CLOSES, str(path / "weftline.db")) as child:
        _, errors = child.communicate(timeout=TIMEOUT_S)
        assert (child.returncode, errors) == (0, "")


def a_file_is_read_and_another_process_reads(path: Path) -> None:
    """E5: closing any descriptor of the file drops the locks that our SQLite holds on it."""
    (path / "weftline.db").read_bytes()
    (path / "weftline.db-shm").read_bytes()
    another_process_reads(path)


def moved_away(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))


def replaced_by_a_copy(file: Path) -> None:
    copy = Path(shutil.copy2(file, file.with_name("copy")))
    copy.rename(file)


def wait_for_a_later_time_than(path: Path) -> None:
    """File systems count in ticks of a few milliseconds."""
    probe = path.with_name("probe")
    while True:
        probe.write_text("")
        if probe.stat().st_ctime_ns > path.stat().st_ctime_ns:
            return


def written(path: Path) -> tuple[Owned, Chain]:
    store = Owned(path)
    chain = store.chain()
    assert store.outcomes(chain.create(body=b"kept")) == ["ok"]
    return store, chain


def test_an_old_owner_is_refused_and_stops(tmp_path: Path) -> None:
    """S7: also for what is written beside the runs."""
    path = tmp_path / "store"
    store, chain = written(path)
    take_over(path)
    assert store.commit(chain.append(b"late")) is None
    assert store.fatal is not None and "taken the store over" in store.fatal
    assert store.bodies(1) == [b"kept"]
    store.close()
    store = Owned(path)
    take_over(path)
    with pytest.raises(asyncio.CancelledError):
        store.write(create_workspace("late"))
    assert store.read(find_workspace("late")) is None
    store.close()


def test_old_owner_does_not_mark_store_as_cleanly_left(tmp_path: Path) -> None:
    """S7."""
    store, _ = written(tmp_path / "store")
    take_over(tmp_path / "store")
    store.close()
    with owned(tmp_path / "store") as again:
        assert again.store.log.unclean


@pytest.mark.parametrize("meddle", [standard_sqlite_reads, a_file_is_read_and_another_process_reads])
@pytest.mark.parametrize("late", ["flush", "query"])
def test_deleted_log_stops_its_owner_before_acknowledging(tmp_path: Path, meddle: object, late: str) -> None:
    """S8, F12, E4, E5: planted bug "stdlib sqlite3 on the store"; what was acknowledged before is kept."""
    assert callable(meddle)
    path = tmp_path / "store"
    store, chain = written(path)
    meddle(path)
    assert not (path / "weftline.db-wal").exists()
    if late == "flush":
        assert store.commit(chain.append(b"lost")) is None
    else:
        with pytest.raises(asyncio.CancelledError):
            store.write(create_workspace("lost"))
    assert store.fatal is not None and "write-ahead log" in store.fatal
    store.close()
    with owned(path) as again:
        assert again.store.log.unclean
        assert again.bodies(1) == [b"kept"]


@pytest.mark.parametrize("how", [moved_away, replaced_by_a_copy, Path.unlink])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("weftline.db", "the database"),
        ("weftline.db-wal", "the write-ahead log"),
        ("weftline.db-shm", "the shared memory file"),
        ("lock", "the lock file"),
    ],
)
@pytest.mark.parametrize("settled", [False, True])
def test_no_file_of_a_store_is_removed_or_replaced_unnoticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str, how: Callable[[Path], None], settled: bool
) -> None:
    """S8: a file without its name can be written to, and nobody finds what was acknowledged again."""
    path = tmp_path / "store"
    store, chain = written(path)
    if settled:  # the directory's own times are looked at from now on
        monkeypatch.setattr(writer, "settles_after_ns", lambda changed: -1)  # pyright: ignore[reportUnknownLambdaType]
        assert store.outcomes(chain.append(b"kept")) == ["ok"]
        wait_for_a_later_time_than(path)
    how(path / name)
    assert store.commit(chain.append(b"lost")) is None
    assert store.fatal is not None and store.fatal.startswith(f"{told} of the store ({path / name}) was removed")
    store.close()


def test_file_system_that_rounds_to_seconds_is_given_more_time() -> None:
    assert writer.settles_after_ns(1_700_000_000_000_000_000) == 3_000_000_000
    assert writer.settles_after_ns(1_700_000_000_010_000_000) == 200_000_000


def test_a_store_whose_directory_was_renamed_stops_before_it_acknowledges(tmp_path: Path) -> None:
    """S8."""
    store, chain = written(tmp_path / "store")
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    assert store.commit(chain.append(b"lost")) is None
    assert store.fatal is not None and store.fatal.startswith("the directory of the store")
    store.close()
    with owned(tmp_path / "elsewhere") as again:
        assert again.bodies(1)[0] == b"kept"


def test_other_files_in_the_directory_are_no_concern(tmp_path: Path) -> None:
    """S8: the control."""
    with owned(tmp_path / "store") as store:
        chain = store.chain()
        assert store.outcomes(chain.create()) == ["ok"]
        for _ in range(2):
            (tmp_path / "store" / "note").write_text("mine")
            assert store.outcomes(chain.append(b"next")) == ["ok"]
            (tmp_path / "store" / "note").unlink()
            assert store.outcomes(chain.append(b"next")) == ["ok"]
        assert store.fatal is None


def test_another_process_that_reads_the_store_does_no_harm(tmp_path: Path) -> None:
    """S8: the control of the two above."""
    path = tmp_path / "store"
    store, chain = written(path)
    another_process_reads(path)
    assert store.outcomes(chain.append(b"next")) == ["ok"]
    store.close()
    assert store.fatal is None
