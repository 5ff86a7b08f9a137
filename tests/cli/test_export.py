"""`weftline export` and `weftline import`, beside the server that owns the store."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from commands import weftline
from weftline import Agent, Engine
from weftline.runtime import ids
from weftline.store import open_store
from weftline.store.records import threads
from weftline.testing import ScriptedModel, ServerProcess

from .conftest import started


@pytest.mark.requirement("run.replay.export", "run.replay.import")
def test_a_run_is_taken_from_one_store_to_another(
    env: dict[str, str | None], server: ServerProcess, tmp_path: Path
) -> None:
    done = weftline("run", "hi", "--model", "scripted:hello", "--json", env=env)
    run_id = json.loads(done.out.splitlines()[-1])["runId"]
    file, db = tmp_path / "run.jsonl", tmp_path / "data"
    written = weftline("export", run_id[:-2], "-o", str(file), "--db", str(server.db))
    assert written.code == 0 and written.out.strip() == str(file), written
    printed = weftline("export", run_id, "-o", "-", "--db", str(server.db))
    assert printed.out.encode() == file.read_bytes()
    taken = weftline("export", run_id, "-o", str(file), "--db", str(server.db))
    assert taken.code == 1 and "already exists" in taken.err
    again = weftline("import", str(file), "--workspace", "acme", "--json", "--db", str(server.db))
    assert json.loads(again.out) == {"created": [], "present": [run_id], "thread": None}, again  # through the server
    _make_store(db)
    first = weftline("import", str(file), "--db", str(db))
    assert (first.code, first.out.split()) == (0, [run_id]), first
    shown = [json.loads(weftline("runs", "show", run_id, "--json", "--db", str(at)).out) for at in (server.db, db)]
    assert shown[0] == shown[1]
    file.write_bytes(file.read_bytes()[:-30])
    cut = weftline("import", str(file), "--db", str(db))
    assert cut.code == 1 and "line " in cut.err


def _make_store(db: Path) -> None:
    asyncio.run(open_store(db).close())


@pytest.mark.requirement("run.replay.export")
def test_export_holds_no_secret_of_tools_that_were_dialled(env: dict[str, str | None], server: ServerProcess) -> None:
    tool = {"kind": "mcp", "name": "files", "url": "http://127.0.0.1:9/", "headers": {"Authorization": "hush-hush"}}
    run_id = started(env, "hello", tools=[tool])
    assert weftline("runs", "follow", run_id, env=env).code == 0
    lines = weftline("export", run_id, "--db", str(server.db)).out
    assert '"files"' in lines and run_id in lines
    assert "hush" not in lines and str(env["WEFTLINE_API_KEY"]) not in lines


def test_a_session_is_taken_from_one_store_to_another(tmp_path: Path) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "session.jsonl"

    async def lead() -> str:
        agent = Agent(ScriptedModel(["Four."]), name="sums")
        async with Engine(here, agents=[agent]) as engine:
            await agent.run("Two and two?", thread="sums", engine=engine)
            row = await engine.store.records.read(threads.by_key(await engine.thread("sums").key()))
            assert row is not None
            return ids.session_id(row.key, row.salt)

    session = asyncio.run(lead())
    written = weftline("export", session, "-o", str(file), "--json", "--db", str(here))
    assert written.code == 0 and json.loads(written.out)["run"] == session, written
    unknown = weftline("export", f"{session[:-1]}z", "--db", str(here))
    assert unknown.code == 1 and "There is no session" in unknown.err
    _make_store(there)
    *runs, imported = weftline("import", str(file), "--db", str(there)).out.split()
    assert len(runs) == 1 and imported.startswith("ses_")
    again = json.loads(weftline("import", str(file), "--json", "--db", str(there)).out)
    assert again == {"created": [], "present": runs, "thread": imported}

    async def said() -> list[str]:
        async with Engine(there) as engine:
            return [getattr(message, "text", "") for message in await engine.thread("sums").messages()]

    assert asyncio.run(said()) == ["Two and two?", "Four."]


@pytest.mark.parametrize("kind", ["run.created", "turn.completed", "run.ended"])
@pytest.mark.parametrize("column", ["head", "body"])
def test_a_damaged_run_is_not_taken_anywhere(tmp_path: Path, kind: str, column: str) -> None:
    db, file = tmp_path / "data", tmp_path / "run.jsonl"

    async def lead() -> str:
        agent = Agent(ScriptedModel(["Four."]), name="sums")
        async with Engine(db, agents=[agent]) as engine:
            return (await agent.run("Two and two?", engine=engine)).run_id

    run_id = asyncio.run(lead())
    rows = sqlite3.connect(db / "weftline.db")
    with rows:
        assert rows.execute(f"UPDATE entries SET {column} = X'7b22' WHERE kind = ?", (kind,)).rowcount == 1
    rows.close()
    for command in (["export", run_id, "-o", str(file)], ["replay", run_id], ["compare", run_id, run_id]):
        done = weftline(*command, "--db", str(db))
        assert done.code and f"The log of run {run_id} is damaged" in done.err, done
        assert "Traceback" not in done.err
    assert not file.exists()
