# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Where a store may be, what is said when it may not, and how its schema comes to today's version (F64, F78)."""

from __future__ import annotations

import asyncio
import errno
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apsw
import pytest

from failing_disks import FaultyDisk
from weftline.errors import StoreError
from weftline.store import open_for_reading, open_store, owner_of
from weftline.store.base import ReadStore
from weftline.store.database import Query, statement
from weftline.store.sqlite.connection import connect, migrate, migrations, schema_version
from weftline.store.sqlite.damage import find_damage
from weftline.store.sqlite.directory import StoreDirectory, file_system
from weftline.store.sqlite.store import SqliteStore
from weftline.testing.store.subject import create_workspace, find_workspace

from .kit import owned, pragma

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


SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"


def schema(db: apsw.Connection) -> list[object]:
    return plain(db.execute(SCHEMA))


def plain(rows: Iterable[Any]) -> list[object]:
    """Without comments and layout: a column that a migration added follows the comment on the last one."""
    return [(*names, "".join(re.sub("--.*", "", sql or "").split())) for *names, sql in rows]


def schema_of_store() -> Query[list[object]]:
    rows = yield from statement(SCHEMA)
    return plain(rows)


def test_a_new_store_is_private(tmp_path: Path) -> None:
    """F12: only its owner may look into it."""
    path = tmp_path / "deep" / "store"
    with owned(path) as store:
        store.commit(store.chain().create())
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


def test_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
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
    assert schema(db) == [("table", "runs", "runs", "CREATETABLEruns(a)")]
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
        assert store.outcomes(store.chain().create()) == ["ok"]


def test_store_that_was_refused_is_not_kept_from_next(tmp_path: Path) -> None:
    """F64: the lock goes with the attempt."""
    path = tmp_path / "store"
    path.mkdir()
    (path / "weftline.db").write_bytes(b"not a database" * 1000)
    error = refusal(path)
    (path / "weftline.db").unlink()
    with owned(path) as store:
        assert store.fatal is None
    assert error.__traceback__ is not None


def lose_database(path: Path) -> None:
    (path / "weftline.db").unlink()


def empty_database(path: Path) -> None:
    (path / "weftline.db").write_bytes(b"")


@pytest.mark.parametrize("lose", [lose_database, empty_database])
@pytest.mark.parametrize("remains", ["weftline.db-wal", "hash.key", "secret.key", "lock"])
def test_store_without_its_database_does_not_become_new(
    tmp_path: Path, lose: Callable[[Path], None], remains: str
) -> None:
    """SQLite would throw the write-ahead log away, and with it what was acknowledged."""
    with owned(tmp_path / "store"):
        pass
    path = tmp_path / "store"
    if remains != "lock":
        (path / "lock").unlink()
        (path / remains).write_bytes(b"x" * 64)
    lose(path)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    for _ in range(2):
        assert "has lost its database" in refusal(path).message
        with pytest.raises(StoreError, match="has lost its database"):
            open_for_reading(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before | {"lock": before.get("lock", b"")}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("hash.key", b"short", "hash.key is damaged: restore it from a backup"),
        ("hash.key", b"", "hash.key is damaged"),
        ("secret.key", b"not base64!", "secret.key must be the base64 of 32 bytes"),
        ("secret.key", b"\xff\xfe", "secret.key cannot be read: it is not text"),
        ("secret.key", b"c2hvcnQ=", "secret.key must be the base64 of 32 bytes"),
    ],
)
def test_unusable_key_is_found_when_the_store_opens(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / "store"
    with owned(path):
        pass
    (path / name).write_bytes(content)
    assert words in refusal(path).message
    assert (path / name).read_bytes() == content
    (path / name).unlink()
    with owned(path) as store:
        assert store.outcomes(store.chain().create()) == ["ok"]


def test_store_with_an_interrupted_first_start_is_finished_later(tmp_path: Path) -> None:
    """The lock is there before the database, and an empty database before its first table."""
    for name in ("locked", "empty"):
        directory = StoreDirectory(tmp_path / name)
        directory.own()
        directory.release()
    (tmp_path / "empty" / "weftline.db").write_bytes(b"")
    (tmp_path / "empty" / "weftline.db-wal").write_bytes(b"")
    for name in ("locked", "empty"):
        with pytest.raises(StoreError, match="There is no store"):
            open_for_reading(tmp_path / name)
        with owned(tmp_path / name) as store:
            assert store.outcomes(store.chain().create()) == ["ok"]


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

    async def bodies(reader: ReadStore) -> list[bytes]:
        return [fact.body for fact in await reader.log.facts(1)]

    with owned(path) as store:
        chain = store.chain()
        store.commit(chain.create(body=b"a"))
        reader = open_for_reading(path)
        assert store.run(bodies(reader)) == [b"a"]
        store.commit(chain.append(b"b"))
        assert store.run(bodies(reader)) == [b"a", b"b"]
        assert store.run(reader.records.read(find_workspace("acme"))) == store.workspace
        with pytest.raises(StoreError):
            store.run(reader.records.write(create_workspace("other")))
        store.run(reader.close())
        assert store.outcomes(chain.append(b"c")) == ["ok"]

    async def read_alone() -> list[bytes]:
        reader = open_for_reading(path)
        try:
            return await bodies(reader)
        finally:
            await reader.close()

    assert asyncio.run(read_alone()) == [b"a", b"b", b"c"]


async def test_a_command_finds_out_who_owns_the_store(tmp_path: Path) -> None:
    """S8: and does not make one by asking."""
    with pytest.raises(StoreError):
        owner_of(tmp_path / "store")
    store = open_store(tmp_path / "store")
    store.announce(socket="/run/w.sock")
    owner = owner_of(tmp_path / "store")
    assert owner is not None and owner.socket == "/run/w.sock"
    assert store.folder == tmp_path / "store"
    await store.close()


async def test_a_store_that_was_closed_says_so(tmp_path: Path) -> None:
    """S8: nobody waits for a writer that has gone."""
    store = open_store(tmp_path / "store")
    await store.close()
    with pytest.raises(StoreError):
        store.log.flush([])
    with pytest.raises(StoreError):
        await store.log.run(1)
    with pytest.raises(StoreError):
        await store.records.write(create_workspace("late"))


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
def test_file_system_of_path_is_that_of_its_innermost_mount(path: str, kind: str) -> None:
    """F12."""
    assert file_system(Path(path), mounts=MOUNTS) == kind
    assert file_system(Path(path), mounts="") == ""


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711, 0o702])
def test_a_store_that_others_could_read_is_closed_to_them(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "store"
    path.mkdir()
    for _ in range(2):  # a new store, and one that exists
        path.chmod(mode)
        with owned(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_directory_of_other_files_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """It is not ours to close."""
    path = tmp_path / "project"
    path.mkdir(mode=0o755)
    (path / "notes.txt").write_text("mine")
    assert "a directory of its own" in refusal(path).message
    assert stat.S_IMODE(path.stat().st_mode) == 0o755 and [file.name for file in path.iterdir()] == ["notes.txt"]


def test_a_store_that_stays_open_to_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    path.mkdir(mode=0o755)

    def not_ours(self: Path, mode: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", not_ours)
    assert "can be read by other users" in refusal(path).message


def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    """F12: locks and logs shared between machines are not safe there."""
    with pytest.raises(StoreError, match="nfs4"):
        StoreDirectory(tmp_path / "store", mounts=f"server:/export {tmp_path} nfs4 rw 0 0\n")
    StoreDirectory(tmp_path / "store", mounts=f"/dev/vda {tmp_path} ext4 rw 0 0\n")


def test_the_schema_pages_are_what_the_migrations_leave(tmp_path: Path) -> None:
    """F78: whoever reads the two pages reads the truth."""
    step_by_step = apsw.Connection(":memory:")
    migrate(step_by_step, path=tmp_path, steps=migrations())
    with owned(tmp_path / "store") as store:
        assert store.read(schema_of_store()) == schema(step_by_step)
        assert store.write(pragma("user_version")) == schema_version(step_by_step) == len(migrations())
    step_by_step.close()


def test_migrations_are_numbered_from_one_without_holes() -> None:
    """F78."""
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))


@pytest.mark.requirement("run.deploy.upgrade")
def test_a_newer_store_is_refused_and_left_untouched(tmp_path: Path) -> None:
    """F64."""
    path = tmp_path / "store"
    with owned(path) as store:
        store.commit(store.chain().create())
    db = connect(path / "weftline.db")
    db.execute("PRAGMA user_version = 999")
    db.close()
    before = (path / "weftline.db").read_bytes()
    error = refusal(path)
    assert error.code == "store_newer" and "999" in error.message
    assert (path / "weftline.db").read_bytes() == before
    assert {file.name for file in path.iterdir()} == {"weftline.db", "lock"}


def test_store_of_first_version_is_refused_and_left_untouched(tmp_path: Path) -> None:
    """Its migrations have the same numbers as ours."""
    path = tmp_path / "store"
    with owned(path) as store:
        store.commit(store.chain().create())
    db = connect(path / "weftline.db")
    db.execute("ALTER TABLE store DROP COLUMN held; PRAGMA user_version = 5")
    db.close()
    before = (path / "weftline.db").read_bytes()
    assert "was created by Weftline 0.1" in refusal(path).message
    assert (path / "weftline.db").read_bytes() == before


def test_a_migration_that_fails_leaves_the_version_before_it_whole(tmp_path: Path) -> None:
    """F78: each step and its number are one transaction; the next start carries on from there."""
    newest, _ = migrations()[-1]
    good = (newest + 1, "CREATE TABLE added (a)")
    bad = (newest + 2, "CREATE TABLE half (a); INSERT INTO half VALUES (1); INSERT INTO nowhere VALUES (1)")
    cured = (newest + 2, "CREATE TABLE half (a); INSERT INTO half VALUES (2)")
    db = connect(tmp_path / "weftline.db")
    migrate(db, path=tmp_path)
    with pytest.raises(StoreError):
        migrate(db, path=tmp_path, steps=[*migrations(), good, bad])
    assert schema_version(db) == newest + 1
    names = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    assert "added" in names and "half" not in names and not db.in_transaction
    migrate(db, path=tmp_path, steps=[*migrations(), good, cured])
    assert (schema_version(db), list(db.execute("SELECT a FROM half"))) == (newest + 2, [(2,)])
    db.close()


@pytest.mark.requirement("run.deploy.upgrade")
def test_features_switched_off_stay_off_under_new_names(tmp_path: Path) -> None:
    db = connect(tmp_path / "weftline.db")
    migrate(db, path=tmp_path, steps=migrations()[:16])
    db.execute("INSERT INTO workspaces (key, slug, name, created_at) VALUES (1, 'a', 'a', 0), (2, 'b', 'b', 0)")
    db.execute("INSERT INTO features_off VALUES (1, 'apiKeys'), (1, 'oauthApps'), (2, 'oauthApps')")
    migrate(db, path=tmp_path)
    off = db.execute("SELECT workspace, feature FROM features_off").fetchall()
    assert off == [(1, "api_keys"), (1, "oauth_apps"), (2, "oauth_apps")]
    db.close()


def test_a_new_store_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    """F78: one transaction, and one wait for the disk."""
    newest, _ = migrations()[-1]
    db = connect(tmp_path / "weftline.db")
    with pytest.raises(StoreError):
        migrate(db, path=tmp_path, steps=[*migrations(), (newest + 1, "INSERT INTO nowhere VALUES (1)")])
    assert (schema_version(db), db.execute("SELECT 1 FROM sqlite_schema").fetchall()) == (0, [])
    assert not db.in_transaction
    migrate(db, path=tmp_path)
    assert (schema_version(db), len(db.execute("SELECT id FROM store").fetchall())) == (newest, 1)
    db.close()


_KILLED = """
import os, sys
from pathlib import Path
from weftline.store.sqlite.connection import connect, migrate, migrations

folder = Path(sys.argv[1])
db = connect(folder / "weftline.db")
db.create_scalar_function("kill", lambda: os._exit(9))
newest, _ = migrations()[-1]
steps = [(newest + 1, "CREATE TABLE added (a)"), (newest + 2, "CREATE TABLE half (a); SELECT kill()")]
migrate(db, path=folder)
migrate(db, path=folder, steps=[*migrations(), *steps])
"""


@pytest.mark.requirement("run.deploy.upgrade")
def test_killed_migration_is_finished_by_the_next_start(tmp_path: Path) -> None:
    newest, _ = migrations()[-1]
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], timeout=60)
    assert killed.returncode == 9
    db = connect(tmp_path / "weftline.db")
    assert schema_version(db) == newest + 1, "the step before it is whole and is not made again"
    steps = [(newest + 1, "CREATE TABLE added (a)"), (newest + 2, "CREATE TABLE half (a)")]
    for _ in range(2):
        migrate(db, path=tmp_path, steps=[*migrations(), *steps])
        assert (schema_version(db), list(db.execute("SELECT * FROM half"))) == (newest + 2, [])
    db.close()


def test_damage_is_found_at_the_start_and_named(tmp_path: Path) -> None:
    """F77: a page in the middle of the log, which no start would read by itself."""
    path = tmp_path / "store"
    with owned(path) as store:
        chain = store.chain()
        store.commit(chain.create())
        for _ in range(50):
            store.commit(chain.append(b"x" * 3000))
    database = path / "weftline.db"
    whole = database.read_bytes()
    middle = len(whole) // 4096 - 20
    database.write_bytes(whole[: middle * 4096] + b"\x5a" * 4096 + whole[(middle + 1) * 4096 :])
    with pytest.raises(StoreError) as refused:
        open_store(path, check=True)
    assert str(path) in refused.value.message and "damaged" in refused.value.message
    assert "backup" in refused.value.message and "\n" not in refused.value.message
    database.write_bytes(whole)
    asyncio.run(open_store(path, check=True).close())


def test_looking_for_damage_ends_in_time(tmp_path: Path) -> None:
    """F77: a large store must not keep a start waiting."""
    with owned(tmp_path / "store") as store:
        chain = store.chain()
        store.commit(chain.create())
        for _ in range(300):
            store.commit(chain.append(b"x" * 3000))
    db = connect(tmp_path / "store" / "weftline.db")
    assert not find_damage(db, path=tmp_path, limit_s=-1.0)
    assert find_damage(db, path=tmp_path, limit_s=None)
    db.close()


def test_apps_codes_grants_and_tokens_of_the_first_schema_stay(tmp_path: Path) -> None:
    """F78: they were made before clients could register themselves, and tokens be for one resource."""
    db = connect(tmp_path / "weftline.db")
    migrate(db, path=tmp_path, steps=migrations()[:1])
    db.execute("INSERT INTO workspaces VALUES (7, 'acme', 'Acme', 1)")
    db.execute("INSERT INTO users VALUES (3, 'user_1', 'ann@example.com', 'x', 1)")
    db.execute("INSERT INTO oauth_apps VALUES (5, 'app', 7, 'p', x'01', 'Notes', '', '', 'private', '[]', 'a b', 1, 2)")
    db.execute("INSERT INTO oauth_codes VALUES (1, 'p', x'02', 5, 3, 7, 'a', '[]', 'https://x', 'c', 9, NULL)")
    db.execute("INSERT INTO oauth_grants VALUES (4, 'grant_1', 'p', x'03', 5, 3, 7, 'a', '[\"agent\"]', 2)")
    db.execute("INSERT INTO oauth_tokens VALUES (6, 'p', x'04', 5, 4, 7, 'a', '[]', 2, 9)")
    migrate(db, path=tmp_path)
    tables = ("oauth_apps", "oauth_codes", "oauth_grants", "oauth_tokens")
    rows = [db.execute(f"SELECT * FROM {table}").fetchall() for table in tables]
    assert rows == [
        [(5, "app", 7, "p", b"\x01", "Notes", "", "", "private", "[]", "a b", 1, 2, 0, 0, None, "")],
        [(1, "p", b"\x02", 5, 3, 7, "a", "[]", "https://x", "c", "", 9, None)],
        [(4, "grant_1", "p", b"\x03", 5, 3, 7, "a", '["agent"]', 2, "", None, None)],
        [(6, "p", b"\x04", 5, 4, 7, "a", "[]", 2, 9, "")],
    ]
    db.close()


async def test_close_that_is_given_up_still_leaves_store_to_others(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store")
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    async with asyncio.timeout(60):
        while True:
            try:
                another = SqliteStore(tmp_path / "store")
                break
            except StoreError:
                await asyncio.sleep(0.001)
    assert not another.log.unclean
    await another.close()
