"""Blobs in SQLite: a backup has them, and a store from before there were any gets a place for them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from weftline.messages import Blob
from weftline.store import open_store
from weftline.store.sqlite.connection import connect, migrate, migrations
from weftline.store.sqlite.store import SqliteStore
from weftline.testing.store.subject import Chain, commit, create_workspace, outcomes

DATA = b"\x00\xff" * 50_000
BLOB = Blob(sha256(DATA).hexdigest(), DATA)


async def test_a_backup_has_the_blobs(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store")
    workspace = await store.records.write(create_workspace("acme"))
    chain = Chain(1, workspace, epoch=store.log.next_epoch())
    assert outcomes(await commit(store.log, chain.create(blobs=(BLOB,)))) == ["ok"]
    await store.back_up(tmp_path / "copy")
    await store.close()
    copy = open_store(tmp_path / "copy")
    assert await copy.log.blob(workspace, BLOB.id) == DATA
    await copy.close()


async def test_a_store_from_before_there_were_blobs_takes_some(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    old = connect(folder / "weftline.db")
    migrate(old, path=folder, steps=migrations()[:1])
    old.close()
    store = SqliteStore(folder)
    workspace = await store.records.write(create_workspace("acme"))
    chain = Chain(1, workspace, epoch=store.log.next_epoch())
    assert outcomes(await commit(store.log, chain.create(blobs=(BLOB,)))) == ["ok"]
    assert await store.log.blob(workspace, BLOB.id) == DATA
    await store.close()
