# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Long strings in SQLite: kept once in a workspace, gone with the last row that has them, and missed by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
from msgspec.json import encode

from weftline.kernel.damage import fact_is_readable
from weftline.kernel.entries import CallClosed
from weftline.store import open_store
from weftline.store.database import Query, statement
from weftline.store.pieces import Split
from weftline.store.sqlite.connection import connect, migrate, migrations
from weftline.store.sqlite.store import SqliteStore
from weftline.testing.store.subject import (
    chain_of,
    commit,
    create_workspace,
    new_thread,
    new_workspace,
    outcomes,
    read_log,
)

from .subjects import SqliteSubject

TEXT = "Something that takes a while to say. " * 1_000
SAID = encode({"role": "user", "parts": [{"type": "text", "text": TEXT}]})
CLOSED = encode({"parts": [{"type": "text", "text": TEXT}]})
HEAD = encode(CallClosed(0, 0, "0.0", "look", "returned"))


def count(table: str) -> Query[int]:
    rows = yield from statement(f"SELECT count(*) FROM {table}")
    return rows[0][0]


def size(table: str, column: str) -> Query[int]:
    rows = yield from statement(f"SELECT coalesce(sum(length({column})), 0) FROM {table}")
    return rows[0][0]


async def test_body_taken_apart_beforehand_is_stored_that_way(tmp_path: Path) -> None:
    """The writer, for which everybody waits, does not do it again."""
    subject = SqliteSubject(tmp_path / "store")
    store = subject.store
    write = chain_of(store.log, 1, await new_workspace(subject)).create(body=SAID)
    write.items[0].parts = Split(b'{"apart":"\0=%s"}' % (b"0" * 64), len(SAID), {"0" * 64: b"before"})
    await commit(store.log, write)
    assert (await read_log(store.log, 1))[0].body == b'{"apart":"before"}'
    await store.close()


async def test_long_string_is_stored_once_until_its_last_row(tmp_path: Path) -> None:
    subject = SqliteSubject(tmp_path / "store")
    log, records = subject.store.log, subject.store.records
    for slug in ("acme", "other"):
        workspace = await new_workspace(subject, slug)
        thread = await new_thread(subject, workspace)
        for number in range(5):
            key = 1 + number + 10 * (slug == "other")
            chain = chain_of(log, key, workspace, thread=thread if number < 2 else None)
            await commit(log, chain.create(body=SAID))
            await commit(log, chain.append(CLOSED, CLOSED))
            await commit(log, chain.end(messages=[SAID] if number < 2 else (), ended_at=100 + number))
    assert await records.read(size("blobs", "data")) == 2 * len(TEXT), "neither workspace can tell what the other has"
    assert await records.read(size("entries", "body")) + await records.read(size("thread_messages", "message")) < 8_000
    await log.trim(before=102, after=0, workspace=None)
    assert await records.read(count("run_blobs")) == 10, "those of the threads are named as before"
    await log.trim(before=200, after=0, workspace=None)
    assert await records.read(count("run_blobs")) == 4 and await records.read(count("blobs")) == 2
    assert await log.thread_messages(thread) == [SAID, SAID]
    await subject.store.close()


async def test_unshared_content_is_deleted_with_its_run(tmp_path: Path) -> None:
    subject = SqliteSubject(tmp_path / "store")
    log, workspace = subject.store.log, await new_workspace(subject)
    chain = chain_of(log, 1, workspace, thread=await new_thread(subject, workspace))
    await commit(log, chain.create(body=SAID))
    await commit(log, chain.append(encode({"parts": [{"type": "text", "text": TEXT[1:]}]})))
    await commit(log, chain.end(messages=[SAID], ended_at=100))
    assert await subject.store.records.read(count("blobs")) == 2
    await log.trim(before=200, after=0, workspace=None)
    assert await subject.store.records.read(size("blobs", "data")) == len(TEXT)
    await subject.store.close()


async def test_small_content_costs_no_statement_more(tmp_path: Path) -> None:
    subject = SqliteSubject(tmp_path / "store")
    store = subject.store
    assert isinstance(store, SqliteStore)
    workspace = await new_workspace(subject)
    chain = chain_of(store.log, 1, workspace, thread=await new_thread(subject, workspace))
    seen: list[str] = []
    store._db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: seen.append(event["sql"]))  # pyright: ignore
    small = encode({"text": "x" * 16_000})
    await commit(store.log, chain.create(body=small))
    await commit(store.log, chain.append(small, small, deltas=[b"d"]))
    await commit(store.log, chain.end(messages=[small]))
    assert len(seen) > 10 and not [sql for sql in seen if "blobs" in sql]
    await store.close()


async def test_missing_string_affects_only_its_runs(tmp_path: Path) -> None:
    subject = SqliteSubject(tmp_path / "store")
    log, workspace = subject.store.log, await new_workspace(subject)
    other = encode({"parts": [{"type": "text", "text": TEXT[1:]}]})
    for key, body in ((1, CLOSED), (2, other)):
        chain = chain_of(log, key, workspace)
        await commit(log, chain.create())
        write = chain.append(body)
        write.items = [type(write.items[0])(5, "call.closed", HEAD, body)]
        await commit(log, write)
    await subject.store.records.write(damage("DELETE FROM blobs WHERE length(data) = $1", len(TEXT)))
    missing, whole = [(await read_log(log, key))[1] for key in (1, 2)]
    assert not fact_is_readable("call.closed", missing.head, missing.body)
    assert fact_is_readable("call.closed", whole.head, whole.body) and whole.body == other
    await subject.store.records.write(damage("UPDATE blobs SET data = CAST(upper(data) AS BLOB)"))
    assert [item.body for item in await read_log(log, 2)][1] != other
    copied = await subject.store.back_up(tmp_path / "copy")
    found = [(one.what, one.run) for one in copied.examples]
    assert ("entry 2", 1) in found and ("entry 2", 2) not in found
    assert [what for what, _ in found if what.startswith("the attachment or long text ")]
    await subject.store.close()


def damage(sql: str, *values: int) -> Query[None]:
    yield from statement(sql, *values)


async def test_a_backup_has_the_strings(tmp_path: Path) -> None:
    subject = SqliteSubject(tmp_path / "store")
    chain = chain_of(subject.store.log, 1, await new_workspace(subject))
    await commit(subject.store.log, chain.create(body=SAID))
    await subject.store.back_up(tmp_path / "copy")
    await subject.store.close()
    copy = open_store(tmp_path / "copy")
    assert [item.body for item in await read_log(copy.log, 1)] == [SAID]
    await copy.close()


async def test_contents_of_an_older_store_stay_in_place(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    old = connect(folder / "weftline.db")
    migrate(old, path=folder, steps=migrations()[:14])
    run: dict[str, Any] = {"key": 1, "salt": "s", "workspace": 1, "name": "", "metadata": "{}", "status": "running"}
    run |= dict.fromkeys(("created_at", "rules", "fold", "state_seq", "version", "epoch"), 1) | {"next_seq": 2}
    old.execute("INSERT INTO workspaces (key, slug, name, created_at) VALUES (1, 'acme', 'acme', 1)")
    old.execute(
        f"INSERT INTO runs ({', '.join(run)}, state) VALUES ({', '.join('?' * len(run))}, x'')", tuple(run.values())
    )
    old.execute(
        "INSERT INTO entries (run, seq, at, kind, head, body) VALUES (1, 1, 1, 'run.created', x'7b7d', ?)", (SAID,)
    )
    old.close()
    store = SqliteStore(folder)
    assert [item.body for item in await read_log(store.log, 1)] == [SAID]
    workspace = await store.records.write(create_workspace("acme"))
    assert outcomes(await commit(store.log, chain_of(store.log, 2, workspace).create(body=SAID))) == ["ok"]
    assert [item.body for item in await read_log(store.log, 2)] == [SAID]
    assert await store.records.read(size("entries", "body")) > len(SAID)
    await store.close()
