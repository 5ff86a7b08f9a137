# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""A run that a newer version has written is left alone: it can be read and is listed, and nobody moves it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import pytest

from commands import weftline_beside
from weftline.kernel.entries import FORMAT
from weftline.testing import ServerProcess

from .hosted.a2a_calls import Caller, stored
from .kit import Api, check_error

SCRIPTS: dict[str, Any] = {
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "done"}]},
    "hello": {"turns": [{"text": "hi"}]},
}
NEWER: Mapping[str, tuple[str, str]] = {
    "rules": ("rules 99", "UPDATE runs SET rules = 99 WHERE key = ?"),
    "format": ("log format 99", "UPDATE runs SET format = 99 WHERE key = ?"),
}
FOLD_ANEW = "UPDATE runs SET fold = 0, due_at = 0"


async def ask(api: Api, **more: Any) -> tuple[str, str]:
    """A run that waits for its client, and the id of the call."""
    run = await api.start("ask", tools=[{"kind": "local", "name": "ask"}], **more)
    async with api.stream(run) as stream:
        return run, (await stream.until("local_tool_call"))["toolUseId"]


async def test_runs_of_newer_version_are_left_alone_readable_and_listed(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key())
        runs = {name: await ask(api) for name in NEWER}
        ours, our_call = await ask(api)
        before = {name: await api.snapshot(run) for name, (run, _) in runs.items()}
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        for number, (_, change) in enumerate(NEWER.values(), start=1):
            db.execute(change, (number,))
        db.execute(FOLD_ANEW)
        rows = db.execute("SELECT key, next_seq, version FROM runs WHERE key < 3").fetchall()
        db.close()

        async def listed() -> dict[str, str]:
            done = await weftline_beside("runs", "list", "--unsupported", "--json", "--db", str(server.db))
            assert done.code == 0, done.err
            return {run["id"]: run["unknown"] for run in json.loads(done.out)}

        expected = {run: NEWER[name][0] for name, (run, _) in runs.items()}
        assert await listed() == expected
        server.start()
        assert await listed() == expected
        done = await weftline_beside(
            "runs", "list", "-q", "--unsupported", "--workspace", "acme", "--db", str(server.db)
        )
        assert set(done.out.split()) == expected.keys()
        for name, (run, call) in runs.items():
            check_error(await api.answer(run, call, result="no"), 409, "unsupported_run")
            check_error(await api.cancel(run), 409, "unsupported_run")
            assert await api.snapshot(run) == before[name]
            async with api.stream(run) as stream:
                await stream.until("assistant_message")
        assert (await api.answer(ours, our_call, result="yes")).status == 200
        assert (await api.events(ours))[-1].type == "result"
        assert (await api.play("hello"))[-1].type == "result"
        server.kill()
        server.start()
        assert await listed() == expected
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        assert db.execute("SELECT key, next_seq, version FROM runs WHERE key < 3").fetchall() == rows
        db.close()


async def test_ended_session_with_a_newer_run_does_not_block_start(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key())
        session = await api.session("ask", tools=[{"kind": "local", "name": "ask"}])
        async with api.stream(await api.send(session)) as stream:
            await stream.until("local_tool_call")
        server.kill()
        db = apsw.Connection(str(server.db / "weftline.db"))
        db.execute("UPDATE runs SET rules = 99")
        db.execute("UPDATE threads SET ended_at = created_at")
        db.close()
        server.start()
        assert (await api.play("hello"))[-1].type == "result"


NEWER_ENDS = {
    "a field": """replace(CAST(head AS TEXT), '{"type"', '{"novel":1,"type"')""",
    "a kind": """'{"type":"run.novel"}'""",
}


@pytest.mark.requirement("run.log.newer_entry")
@pytest.mark.parametrize("news", NEWER_ENDS)
async def test_newer_end_is_reported_as_such_and_ends_streams(
    tmp_path: Path, http: aiohttp.ClientSession, news: str
) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key())
        session = await api.session("hello")
        run = await api.send(session)
        events = await api.events(run)
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        db.execute(f"UPDATE entries SET head = CAST({NEWER_ENDS[news]} AS BLOB) WHERE kind = 'run.ended'")
        db.execute("UPDATE runs SET format = 99")
        db.close()
        server.start()
        check_error(await api.get(f"agent-runs/{run}"), 409, "unsupported_run")
        check_error(await api.get(f"agent-sessions/{session}"), 409, "unsupported_run")
        (listed,) = (await api.get("agent-runs")).json["runs"]
        assert (listed["status"], listed["errorCode"]) == ("succeeded", "unsupported_run")
        assert listed["finishedAt"] is not None
        *seen, last = await api.events(run)
        assert (last.type, last["code"], last.seq) == ("error", "unsupported_run", events[-1].seq)
        assert seen == events[:-1]
        with_details = await api.get(f"agent-runs/{run}/stream?profile=metrics")
        assert b'"code":"unsupported_run"' in with_details.body
        assert (await api.get(f"agent-runs/{run}/stream?lastSeq={last.seq}")).status == 204
        for command in ("show", "follow"):
            done = await weftline_beside("runs", command, run, "--db", str(server.db))
            assert done.code == 1
            assert "newer version" in done.err and "damaged" not in done.err
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        db.execute("DELETE FROM entries WHERE seq < ?", (last.seq,))
        db.execute("DELETE FROM deltas")
        db.close()
        server.start()
        gap, end = await api.events(run)
        assert (gap.type, gap["snapshot"]["errorCode"]) == ("gap", "unsupported_run")
        assert (end.type, end["code"]) == ("error", "unsupported_run")


@pytest.mark.requirement("run.log.newer_entry")
@pytest.mark.parametrize(("format", "why"), [(99, "newer version"), (FORMAT, "damaged")])
async def test_one_task_that_cannot_be_read_does_not_hide_others(
    tmp_path: Path, http: aiohttp.ClientSession, format: int, why: str
) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        caller = Caller(Api(http, server.url, "acme", server.create_key()), "1.0")
        await stored(caller.api, "hello")
        unreadable, readable = await caller.send(), await caller.send()
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        first = db.execute("SELECT min(key) FROM runs").get
        db.execute("UPDATE runs SET format = ? WHERE key = ?", (format, first))
        db.execute("UPDATE entries SET head = ? WHERE kind = 'run.ended' AND run = ?", (b'{"type":"run.novel"}', first))
        db.close()
        server.start()
        await caller.api.get("agents")  # on a new connection
        listed = (await caller.call("list", {"historyLength": 5}))["tasks"]
        assert [task["id"] for task in listed] == [readable["id"], unreadable["id"]]
        status = listed[1]["status"]
        assert status["state"] == "TASK_STATE_COMPLETED"
        assert why in status["message"]["parts"][0]["text"]
        assert why in (await caller.error("get", {"id": unreadable["id"]}))["message"]
