# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Where a store may be, what is said when it may not, and how its schema comes to today's version (F64, F78)."""

from __future__ import annotations

import stat
from importlib import resources
from pathlib import Path

import apsw
import pytest

from weftline.errors import StoreError
from weftline.store.sqlite.connection import connect, migrate, migrations, schema_version
from weftline.store.sqlite.directory import StoreDirectory, file_system
from weftline.store.sqlite.store import SqliteStore, open_for_reading
from weftline.testing.faults import FaultyDisk
from weftline.testing.store import Chain

from .kit import owned

MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
server:/export /mnt/team\\040files nfs4 rw 0 0
/dev/vdb /mnt/team\\040files/local xfs rw 0 0
tmpfs /mnt/nfs tmpfs rw 0 0
odd line
"""


def refusal(path: Path, *, vfs: str | None = None) -> StoreError:
    """Asserts that the store cannot be opened and that this is told in one sentence that names the place."""
    with pytest.raises(StoreError) as refused:
        SqliteStore(path, vfs=vfs)
    message = refused.value.message
    assert str(path) in message and message.endswith(".") and "\n" not in message
    return refused.value


def schema(db: apsw.Connection) -> list[object]:
    return list(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"))


def test_a_new_store_is_private(tmp_path: Path) -> None:
    """F12: only its owner may look into it."""
    path = tmp_path / "deep" / "store"
    with owned(path) as store:
        store.commit(Chain(1, store.workspace).create())
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
        assert set(modes) == {"lock", "weftline.db", "weftline.db-wal", "weftline.db-shm"}
        assert set(modes.values()) == {0o600}


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """F64."""
    (tmp_path / "file").write_text("mine")
    assert refusal(tmp_path / "file").code == "store_unusable"
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("place", ["/dev/null/store", "/proc/store", "/" + "x" * 300])
def test_a_place_where_nothing_can_be_made_is_refused(place: str) -> None:
    """F64."""
    assert refusal(Path(place)).code == "store_unusable"


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """F64."""
    (tmp_path / "weftline.db").write_bytes(b"not a database" * 1000)
    assert refusal(tmp_path).code == "store_unusable"
    assert (tmp_path / "weftline.db").read_bytes() == b"not a database" * 1000


def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """F64: also when its tables happen to have names of ours."""
    db = apsw.Connection(str(tmp_path / "weftline.db"))
    db.execute("CREATE TABLE runs (a)")
    db.close()
    assert refusal(tmp_path).code == "store_unusable"
    db = apsw.Connection(str(tmp_path / "weftline.db"))
    assert schema(db) == [("table", "runs", "runs", "CREATE TABLE runs (a)")]
    db.close()


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    """F64, F77."""
    with owned(tmp_path / "store"):
        pass
    database = tmp_path / "store" / "weftline.db"
    content = bytearray(database.read_bytes())
    content[100:4096] = bytes(3996)
    database.write_bytes(content)
    assert refusal(tmp_path / "store").code == "store_unusable"


def test_a_store_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """F64: a read-only disk, with a store on it and without."""
    with owned(tmp_path / "old"):
        pass
    for name in ("old", "new"):
        with FaultyDisk() as disk:
            disk.fail("xWrite", code=apsw.SQLITE_READONLY, times=10**9, file="-wal" if name == "old" else "")
            assert refusal(tmp_path / name, vfs=disk.vfs).code == "store_unusable"
            disk.heal()
    with owned(tmp_path / "old") as store:
        assert store.outcomes(Chain(1, store.workspace).create()) == ["ok"]


def test_a_store_that_was_refused_is_not_kept_from_the_next(tmp_path: Path) -> None:
    """F64: the lock goes with the attempt."""
    path = tmp_path / "store"
    path.mkdir()
    (path / "weftline.db").write_bytes(b"not a database" * 1000)
    error = refusal(path)
    (path / "weftline.db").unlink()
    with owned(path) as store:
        assert store.fatal is None
    assert error.__traceback__ is not None


def test_reading_needs_a_store(tmp_path: Path) -> None:
    """F64: looking does not make one."""
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        with pytest.raises(StoreError):
            open_for_reading(tmp_path / name)
    assert not (tmp_path / "missing").exists() and list((tmp_path / "empty").iterdir()) == []


@pytest.mark.requirement("run.engine.one_owner")
def test_a_store_is_read_beside_its_owner_and_without_one(tmp_path: Path) -> None:
    """S8: commands that only read work beside the owner."""
    path = tmp_path / "store"
    with owned(path) as store:
        chain = Chain(1, store.workspace)
        store.commit(chain.create(body=b"a"))
        reader = open_for_reading(path)
        assert [fact[4] for fact in reader.facts(1)] == [b"a"]
        store.commit(chain.append(b"b"))
        assert [fact[4] for fact in reader.facts(1)] == [b"a", b"b"]
        reader.close()
        assert store.outcomes(chain.append(b"c")) == ["ok"]
    reader = open_for_reading(path)
    assert len(reader.facts(1)) == 3
    reader.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/mnt/team files/store", "nfs4"),
        ("/mnt/team files", "nfs4"),
        ("/mnt/team files/local/store", "xfs"),
        ("/mnt/team", "ext4"),
        ("/mnt/nfs/store", "tmpfs"),
        ("/", "ext4"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_innermost_mount(path: str, kind: str) -> None:
    """F12."""
    assert file_system(Path(path), mounts=MOUNTS) == kind
    assert file_system(Path(path), mounts="") == ""


def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    """F12: locks and logs shared between machines are not safe there."""
    with pytest.raises(StoreError, match="nfs4"):
        StoreDirectory(tmp_path / "store", mounts=f"server:/export {tmp_path} nfs4 rw 0 0\n")
    StoreDirectory(tmp_path / "store", mounts=f"/dev/vda {tmp_path} ext4 rw 0 0\n")


def test_the_schema_page_is_what_the_migrations_leave(tmp_path: Path) -> None:
    """F78: whoever reads `schema.sql` reads the truth."""
    page = apsw.Connection(":memory:")
    page.execute((resources.files("weftline.store.sqlite") / "schema.sql").read_text(encoding="utf-8"))
    with owned(tmp_path / "store") as store:
        assert store.job(schema) == schema(page)
        assert store.job(schema_version) == len(migrations())
    page.close()


def test_migrations_are_numbered_from_one_without_holes() -> None:
    """F78."""
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))


def test_a_newer_store_is_refused_and_left_untouched(tmp_path: Path) -> None:
    """F64."""
    path = tmp_path / "store"
    with owned(path) as store:
        store.commit(Chain(1, store.workspace).create())
    db = connect(path / "weftline.db")
    db.execute("PRAGMA user_version = 999")
    db.close()
    before = (path / "weftline.db").read_bytes()
    error = refusal(path)
    assert error.code == "store_newer" and "999" in error.message
    assert (path / "weftline.db").read_bytes() == before
    assert {file.name for file in path.iterdir()} == {"weftline.db", "lock"}


def test_a_migration_that_fails_leaves_the_version_before_it_whole(tmp_path: Path) -> None:
    """F78: each step and its number are one transaction; the next start carries on from there."""
    newest, _ = migrations()[-1]
    good = (newest + 1, "CREATE TABLE added (a)")
    bad = (newest + 2, "CREATE TABLE half (a); INSERT INTO half VALUES (1); INSERT INTO nowhere VALUES (1)")
    cured = (newest + 2, "CREATE TABLE half (a); INSERT INTO half VALUES (2)")
    db = connect(tmp_path / "weftline.db")
    with pytest.raises(StoreError):
        migrate(db, path=tmp_path, steps=[*migrations(), good, bad])
    assert schema_version(db) == newest + 1
    names = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    assert "added" in names and "half" not in names and not db.in_transaction
    migrate(db, path=tmp_path, steps=[*migrations(), good, cured])
    assert (schema_version(db), list(db.execute("SELECT a FROM half"))) == (newest + 2, [(2,)])
    db.close()
