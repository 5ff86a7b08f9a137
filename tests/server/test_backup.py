# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Backups of a store that is in use, and what a restored store does: nothing, before somebody lets it go on."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import pytest

from commands import Done, weftline_beside
from forked import run_python
from weftline import Engine
from weftline.errors import StoreError
from weftline.kernel.entries import decode_fact
from weftline.kernel.evolve import fold
from weftline.kernel.state import State
from weftline.store import open_for_reading, open_store
from weftline.store.rows import RunFilter
from weftline.store.sealing import KEY_FILE
from weftline.store.sqlite.backup import draft_of
from weftline.testing import ServerProcess

from .kit import TIMEOUT_S, Api, check_error, local_tool, logged, of_type, types

CALLS: list[dict[str, Any]] = [{"name": name, "args": {}} for name in ("put", "pay")]
SCRIPTS: dict[str, Any] = {
    "hello": {"turns": [{"text": "hi"}]},
    "ask": {"turns": [{"tool_calls": [{"name": "lookup", "args": {}}]}, {"text": "{{all_tool_results}}"}]},
    "work": {"turns": [{"tool_calls": CALLS}, {"text": "{{all_tool_results}}"}]},
    "stream": {"turns": [{"deltas": [f"{n} " for n in range(200)], "delay_ms": 5}]},
}
TOOLS = """
import asyncio, os, weftline

def note(context):
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{context.tool_name} {context.idempotency_key}\\n")

@weftline.tool(effect="idempotent", concurrent=True)
async def put(context: weftline.ToolContext) -> str:
    note(context)
    while not os.path.exists(os.environ["NOTES"] + ".go"):
        await asyncio.sleep(0.005)
    return "put"

@weftline.tool(concurrent=True)
async def pay(context: weftline.ToolContext) -> str:
    note(context)
    while not os.path.exists(os.environ["NOTES"] + ".go"):
        await asyncio.sleep(0.005)
    return "paid"
"""
PLUGINS = [{"kind": "mantyx_plugin", "name": name} for name in ("put", "pay")]


async def run(*arguments: str | Path) -> Done:
    done = await weftline_beside(*map(str, arguments))
    assert done.code == 0, done.err
    return done


async def noted(notes: Path, count: int) -> list[str]:
    """The lines of the tools' notes, once there are that many."""
    async with asyncio.timeout(TIMEOUT_S):
        while len(lines := (await asyncio.to_thread(notes.read_text)).splitlines()) < count:
            pass
    return sorted(lines)


@pytest.mark.requirement("run.log.backup")
async def test_restored_store_does_nothing_before_it_is_released(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    notes = tmp_path / "notes"
    notes.touch()
    env = {"NOTES": str(notes)}
    with ServerProcess(first, scripts=SCRIPTS, tools=TOOLS, env=env) as server:
        key = server.create_key()
        api = Api(http, server.url, "acme", key)
        ended = await api.start("hello")
        whole = await api.events(ended)
        parked = await api.start("ask", tools=[local_tool()])
        async with api.stream(parked) as stream:
            call = await stream.until("local_tool_call")
        doomed = await api.start("ask", tools=[local_tool()])
        async with api.stream(doomed) as stream:
            await stream.until("local_tool_call")
        working = await api.start("work", tools=PLUGINS)
        before = await noted(notes, 2)
        backup = tmp_path / "backups" / "today"
        done = await run("backup", backup, "--db", server.db)
        assert done.out == f"{backup}\n"
        (tmp_path / "notes.go").touch()
        assert (await api.events(working))[-1]["text"] == "put || paid"  # the store that was copied goes on
        server.terminate()
    assert {stat.S_IMODE(path.stat().st_mode) for path in backup.iterdir()} == {0o600}
    with ServerProcess(second, scripts=SCRIPTS, tools=TOOLS, env=env) as unused:
        unused.terminate()
        for path in unused.db.iterdir():
            path.unlink()
        command = f"`weftline resume --all --db {unused.db}`"
        assert command in (await run("restore", backup, "--db", unused.db)).err
        again = unused.start()
        assert await logged(again, command)
        api = Api(http, again.url, "acme", key)
        assert await api.events(ended) == whole
        check_error(await api.get("/readyz"), 503, "unavailable")
        check_error(await api.post("agent-runs", {"modelId": "scripted:hello", "prompt": "x"}), 503, "unavailable")
        assert (await api.snapshot(working))["status"] == "running"
        again.kill()
        again.start()  # it stays held, also after a kill
        check_error(await api.get("/readyz"), 503, "unavailable")
        assert (await api.answer(parked, call["toolUseId"], result="late")).status == 200
        assert (await api.cancel(doomed)).status == 200
        assert (await api.events(doomed))[-1].type == "cancelled"
        assert await noted(notes, 2) == before
        assert (await run("resume", "--all", "--db", again.db)).out == "Runs may continue: 2 have not ended.\n"
        assert "is not held" in (await run("resume", "--all", "--db", again.db)).out
        assert (await api.get("/readyz")).status == 200
        assert (await api.events(parked))[-1]["text"] == "late"
        results = {frame["name"]: frame for frame in of_type(await api.events(working), "tool_result")}
        assert results["put"]["ok"] and not results["pay"]["ok"]
        assert "not known whether it took effect" in results["pay"]["result"]
        (put,) = [line for line in before if line.startswith("put ")]
        assert await noted(notes, 3) == sorted([*before, put])  # the same key: its receiver knows it
        assert types(await api.play("hello"))[-1] == "result"
        again.terminate()
        again.start()
        assert (await api.get("/readyz")).status == 200


@pytest.mark.requirement("run.log.backup")
async def test_backup_is_one_moment_of_store_that_is_being_written(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key())
        runs = [await api.start("stream") for _ in range(10)]
        for number in range(3):
            await run("backup", tmp_path / f"b{number}", "--db", server.db)
        for name in runs:
            assert (await api.events(name))[-1].type == "result"
    for number in range(3):
        db = apsw.Connection(str(tmp_path / f"b{number}" / "weftline.db"))
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("SELECT clean, held, died FROM store").fetchall() == [(1, 1, None)]
        holes = """SELECT key FROM runs WHERE next_seq - 1 <> (SELECT count(*) FROM entries WHERE run = key)
                   + (SELECT coalesce(sum(count), 0) FROM deltas WHERE run = key)"""
        assert db.execute(holes).fetchall() == []
        db.close()
        await folds(tmp_path / f"b{number}", len(runs))


async def folds(store: Path, runs: int) -> None:
    """Every run in a store has a log that folds, to the status that its row has."""
    reader = open_for_reading(store)
    try:
        rows = await reader.log.runs(RunFilter())
        assert len(rows) == runs
        for row in rows:
            facts = [(fact.at, decode_fact.decode(fact.head)) for fact in await reader.log.facts(row.key)]
            state = fold(State(), facts)
            assert not state.broken and state.ended is (row.ended_at is not None)
    finally:
        await reader.close()


async def test_a_backup_has_the_keys_that_its_secrets_need(tmp_path: Path) -> None:
    db, backup, other = tmp_path / "store", tmp_path / "backup", tmp_path / "other"
    await open_store(db).close()
    await run("keys", "create", "--workspace", "acme", "--db", db)
    await run("webhooks", "create", "--workspace", "acme", "--url", "https://example.com/", "--db", db)
    assert (db / KEY_FILE).exists()
    done = await run("backup", backup, "--json", "--db", db)
    assert json.loads(done.out)["bytes"] == sum(path.stat().st_size for path in backup.iterdir())
    await run("restore", backup, "--db", other)
    assert (other / KEY_FILE).read_bytes() == (db / KEY_FILE).read_bytes()


async def test_interrupted_copy_is_recognized_and_removed_by_the_next(tmp_path: Path) -> None:
    store, backups = tmp_path / "store", tmp_path / "backups"
    await open_store(store).close()
    backups.mkdir()
    (backups / ".mine").mkdir()
    with draft_of(backups / "monday") as draft:
        (draft / "weftline.db").write_bytes(b"half")
        shutil.copytree(draft, backups / ".monday.killed")  # what a kill leaves: nobody holds the lock of the copy
        shutil.copytree(draft, backups / ".monday.with-more")
        (backups / ".monday.with-more" / "mine").touch()
        done = await weftline_beside("restore", str(draft), "--db", str(tmp_path / "new"))
        assert (done.code, done.out) == (1, "") and "is an unfinished copy" in done.err
        await run("backup", backups / "tuesday", "--db", store)
        assert sorted(os.listdir(backups)) == sorted([draft.name, ".mine", ".monday.with-more", "tuesday"])
    assert sorted(os.listdir(backups)) == [".mine", ".monday.with-more", "tuesday"]
    assert sorted(os.listdir(backups / "tuesday")) == ["weftline.db"]


KILLED = """
import os, signal, sys
moment = sys.argv.pop(1)
sys.addaudithook(lambda event, _: os.kill(os.getpid(), signal.SIGKILL) if event == moment else None)
from weftline.cli import main
main()
"""


@pytest.mark.parametrize("moment", ["shutil.copyfile", "os.rename"])
async def test_no_empty_store_takes_the_place_of_a_killed_restore(tmp_path: Path, moment: str) -> None:
    store, backup, new = tmp_path / "store", tmp_path / "backup", tmp_path / "new"
    await open_store(store).close()
    await run("keys", "create", "--workspace", "acme", "--db", store)
    await run("webhooks", "create", "--workspace", "acme", "--url", "https://example.com/", "--db", store)
    await run("backup", backup, "--db", store)
    killing = ("-c", KILLED, moment, "restore", str(backup), "--db", str(new))
    killed = await asyncio.to_thread(run_python, *killing)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    await run("backup", tmp_path / "other", "--db", store)  # which removes other drafts
    commands = [
        ("serve", "--port", "0"),
        ("runs", "list"),
        ("keys", "create", "--workspace", "acme"),
        ("backup", str(tmp_path / "x")),
    ]
    for command in commands:
        done = await weftline_beside(*command, "--db", str(new))
        assert done.code == 1 and "a restore to it was cut off" in done.err, done
        assert f"weftline restore BACKUP --db {new}" in done.err and not new.exists()
    with pytest.raises(StoreError, match="a restore to it was cut off"):
        await Engine(new).__aenter__()
    await run("restore", backup, "--db", new)
    assert (await run("workspaces", "list", "-q", "--db", new)).out == "acme\n"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".new.")]


@pytest.mark.parametrize("command", ["backup", "restore"])
async def test_copy_neither_overwrites_nor_takes_other_folders(command: str, tmp_path: Path) -> None:
    store, taken = tmp_path / "store", tmp_path / "taken"
    await open_store(store).close()
    taken.mkdir()
    (taken / "mine").write_text("mine")

    async def refused(source: Path, to: Path) -> str:
        arguments = (to, "--db", source) if command == "backup" else (source, "--db", to)
        done = await weftline_beside(command, *map(str, arguments))
        assert (done.code, done.out) == (1, "") and done.err.startswith("weftline: ") and done.err.count("\n") == 1
        return done.err

    assert str(taken) in await refused(store, taken)
    what = "store" if command == "backup" else "backup"
    assert f"There is no {what} at {taken}" in await refused(taken, tmp_path / "new")
    assert os.listdir(taken) == ["mine"] and sorted(os.listdir(tmp_path)) == ["store", "taken"]


async def test_a_store_is_not_copied_into_itself(tmp_path: Path) -> None:
    store = tmp_path / "store"
    await open_store(store).close()
    (tmp_path / "link").symlink_to(store)
    for to in (store / "backup", tmp_path / "link" / "backup"):
        done = await weftline_beside("backup", str(to), "--db", str(store))
        assert done.code == 1 and f"{to} is in the store itself" in done.err
    assert not (store / "backup").exists()


async def test_damaged_backup_and_one_of_newer_version_are_not_restored(tmp_path: Path) -> None:
    store, backup = tmp_path / "store", tmp_path / "backup"
    await open_store(store).close()
    await run("backup", backup, "--db", store)
    file = backup / "weftline.db"
    good = file.read_bytes()
    db = apsw.Connection(str(file))
    db.execute("PRAGMA user_version = 999")
    db.close()
    done = await weftline_beside("restore", str(backup), "--db", str(tmp_path / "new"))
    assert done.code == 1 and "999" in done.err
    damaged = bytearray(good)
    damaged[5 * 4096 : 6 * 4096] = b"\x5a" * 4096
    file.write_bytes(damaged)
    done = await weftline_beside("restore", str(backup), "--db", str(tmp_path / "new"))
    assert done.code == 1 and "damaged" in done.err and not (tmp_path / "new").exists()


def pages_of(database: Path, table: str) -> list[int]:
    """The numbers of the pages that have rows of a table, from 0."""
    db = apsw.Connection(str(database))
    rows: list[Any] = db.execute(
        "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY pageno", (table,)
    ).fetchall()
    db.close()
    return [number - 1 for (number,) in rows]


def overwrite_page(database: Path, page: int) -> None:
    with database.open("r+b") as file:
        file.seek(page * 4096)
        file.write(b"\x5a" * 4096)


async def test_a_store_with_a_bad_page_is_salvaged(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    """One bad page of entries: all other runs are whole, and those on it have their outcome or fail."""
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        waiting = [await api.start("ask", tools=[local_tool("lookup")]) for _ in range(10)]
        for run_id in waiting:
            async with api.stream(run_id) as stream:
                await stream.until("local_tool_call")
        ended = [await api.start("hello") for _ in range(30)]
        before = {run_id: await api.events(run_id) for run_id in ended}
        assert server.terminate() == 0
        pages = pages_of(server.db / "weftline.db", "entries")
        overwrite_page(server.db / "weftline.db", pages[len(pages) // 4])
        to = tmp_path / "again" / "store"
        done = await weftline_beside("salvage", str(server.db), str(to), "--json")
        assert done.code == 1 and done.out, done.err
        report = json.loads(done.out)
        hurt = {*report["shortenedRuns"], *report["failingRuns"]}
        assert report["damagedTables"] == ["entries"] and report["lostRuns"] == report["unreadable"] == 0
        assert hurt and report["wholeRuns"] == 40 - len(hurt) > 20
        assert set(report["failingRuns"]) <= set(waiting) and set(report["shortenedRuns"]) <= set(ended)
    with ServerProcess(tmp_path / "again", scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        for run_id in set(ended) - hurt:
            assert await api.events(run_id) == before[run_id]
        for run_id in set(ended) & hurt:
            assert (await api.get(f"agent-runs/{run_id}")).json["status"] == "succeeded"
        await run("resume", "--all", "--db", to)
        for run_id in waiting:
            if run_id in hurt:
                await api.events(run_id)
            else:
                await api.post(f"agent-runs/{run_id}/tool-results", {"toolUseId": "call_0_0", "result": "x"})
                assert (await api.events(run_id))[-1].type == "result"
        listed = {one["id"]: one["status"] for one in (await api.get("agent-runs")).json["runs"]}
        assert listed == {run_id: "failed" if run_id in report["failingRuns"] else "succeeded" for run_id in listed}
