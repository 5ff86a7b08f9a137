# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A run that can no longer be carried on: its clients see how it ended, and nobody sees a 5xx."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import pytest

from commands import weftline_beside
from weftline.testing import ServerProcess

from .hosted.test_a2a import message, rpc, stored
from .kit import Api, check_error

SCRIPTS: dict[str, Any] = {
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "done"}]},
    "hello": {"turns": [{"text": "hi"}]},
}


@pytest.mark.requirement("wire.run.failure_after_accept")
async def test_run_with_an_unreadable_log_ends_with_one_error(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        tools = [{"kind": "local", "name": "ask"}]
        made = await api.call("POST", "agent-runs", {"modelId": "scripted:ask", "prompt": "x", "tools": tools})
        run_id = made.json["runId"]
        async with api.stream(run_id) as stream:
            await stream.until("local_tool_call")
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        db.execute("UPDATE runs SET state = x'00', due_at = 0")
        db.execute("UPDATE entries SET head = x'7b' WHERE seq > 1")
        ((last,),) = db.execute("SELECT max(seq) FROM entries").fetchall()
        db.close()
        server.start()
        frames = await api.events(run_id)
        assert [frame.type for frame in frames] == ["started", "error"]
        assert (frames[-1]["code"], frames[-1]["errorClass"]) == ("log_damaged", "unknown")
        rest = await api.events(run_id, last_seq=last)
        assert [(frame.type, frame["code"]) for frame in rest] == [("error", "worker_error")]
        assert (await api.call("GET", f"agent-runs/{run_id}")).json["errorCode"] == "worker_error"
        fine = await api.call("POST", "agent-runs", {"modelId": "scripted:hello", "prompt": "x"})
        async with api.stream(fine.json["runId"]) as stream:
            assert (await stream.rest())[-1].type == "result"


@pytest.mark.requirement("wire.run.failure_after_accept")
@pytest.mark.parametrize("request_", ["tool-results", "messages", "pause"])
async def test_request_to_a_waiting_damaged_run_ends_it(
    tmp_path: Path, http: aiohttp.ClientSession, request_: str
) -> None:
    bodies: dict[str, Any] = {"tool-results": {"toolUseId": "call_0_0", "result": "x"}, "messages": {"text": "x"}}
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        run = await api.start("ask", tools=[{"kind": "local", "name": "ask"}])
        async with api.stream(run) as stream:
            await stream.until("local_tool_call")
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        db.execute("UPDATE entries SET head = x'7b' WHERE seq = 3")
        db.execute("UPDATE runs SET fold = 99")
        ((last,),) = db.execute("SELECT max(seq) FROM entries").fetchall()
        db.close()
        server.start()
        path, body = f"agent-runs/{run}/{request_}", bodies.get(request_, {})
        error = check_error(await api.post(path, body), 500, "log_damaged")
        assert run in error["message"]
        rest = await api.events(run, last_seq=last)
        assert [(frame.type, frame["code"]) for frame in rest] == [("error", "worker_error")]
        check_error(await api.post(path, body), 409, "run_terminal")


async def test_unreadable_parts_of_a_store_are_reported(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        runs = [await api.start("hello") for _ in range(4)]
        session = (await api.call("POST", "agent-sessions", {"modelId": "scripted:hello"})).json["sessionId"]
        said = await api.call("POST", f"agent-sessions/{session}/messages", {"prompt": "x"})
        await api.events(said.json["runId"])
        whole = [await api.events(run) for run in runs]
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        db.execute("UPDATE entries SET body = substr(body, 2) WHERE run = 2 AND seq = 1")
        db.execute("UPDATE entries SET body = x'7b' WHERE run = 3 AND kind = 'run.ended'")
        db.execute("UPDATE deltas SET bodies = x'22' WHERE run = 4")
        db.execute("UPDATE thread_messages SET message = ?", [b"[" * 200_000])
        db.close()
        server.start()
        for run in runs[1:3]:
            error = check_error(await api.get(f"agent-runs/{run}"), 500, "log_damaged")
            assert run in error["message"]
        assert (await api.snapshot(runs[3]))["finalText"] == "hi"
        listed = {run["id"]: run["errorCode"] for run in (await api.get("agent-runs")).json["runs"]}
        assert listed.pop(said.json["runId"]) is None
        assert listed == {runs[0]: None, runs[1]: None, runs[2]: "log_damaged", runs[3]: None}
        error = check_error(await api.get(f"agent-sessions/{session}"), 500, "log_damaged")
        assert session in error["message"]
        assert await api.events(runs[0]) == whole[0]
        for run, before in zip(runs[2:], whole[2:], strict=True):
            *rest, last = await api.events(run)
            assert rest == before[: len(rest)] and (last.type, last["code"]) == ("error", "log_damaged")
        assert "Traceback" not in "".join(server.log)
        copy = tmp_path / "copy"
        done = await weftline_beside("backup", str(copy), "--db", str(server.db))
        assert (done.code, done.out) == (1, f"{copy}\n")
        assert "cannot be read: 5 (" in done.err and all(run in done.err for run in runs[1:])
        done = await weftline_beside("restore", str(copy), "--json", "--db", str(tmp_path / "again"))
        assert done.code == 0 and json.loads(done.out)["unreadable"] == 5 and runs[1] in done.err


async def test_damaged_row_is_shown_and_hides_no_others(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    impossible = -(2**63)
    columns: dict[str, Any] = {
        "status": "{garbage",
        "created_at": impossible,
        "started_at": 2**62,
        "ended_at": impossible,
        "next_seq": impossible,
        "metadata": "{garbage",
        "name": b"\xff\xfe",
    }
    of_sessions: dict[str, Any] = {
        "spec": b"\xff\x00g",
        "metadata": "[1]",
        "created_at": impossible,
        "last_used_at": impossible,
        "ended_at": impossible,
    }
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        fine, *runs = [await api.start("hello") for _ in range(1 + len(columns))]
        for run in (fine, *runs):
            await api.events(run)
        made = [await api.post("agent-sessions", {"modelId": "scripted:hello"}) for _ in range(2 + len(of_sessions))]
        unhurt, talked, *sessions = [reply.json["sessionId"] for reply in made]
        said = await api.post(f"agent-sessions/{talked}/messages", {"prompt": "x"})
        await api.events(said.json["runId"])
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        for key, (column, value) in enumerate(columns.items(), start=2):
            text = isinstance(value, bytes)
            db.execute(f"UPDATE runs SET {column} = {'CAST(? AS TEXT)' if text else '?'} WHERE key = ?", (value, key))
        for key, (column, value) in enumerate(of_sessions.items(), start=3):
            db.execute(f"UPDATE threads SET {column} = ? WHERE key = ?", (value, key))
        db.execute("UPDATE thread_messages SET message = x'7b' WHERE thread = 2")
        db.close()
        server.start()
        for query in ("agent-runs", "agent-runs?limit=3"):
            listed = {run["id"]: run["errorCode"] for run in (await api.get(query)).json["runs"]}
            assert (
                listed.items() <= {fine: None, said.json["runId"]: None, **dict.fromkeys(runs, "log_damaged")}.items()
            )
        assert len((await api.get("agent-runs")).json["runs"]) == len(runs) + 2
        for run, column in zip(runs, columns, strict=True):
            error = check_error(await api.get(f"agent-runs/{run}"), 500, "log_damaged")
            assert run in error["message"] and column in error["message"]
            assert (await api.events(run))[-1].type in ("result", "error")
        assert (await api.snapshot(fine))["finalText"] == "hi"
        listed = {one["id"]: one.get("errorCode") for one in (await api.get("agent-sessions")).json["sessions"]}
        damaged = dict.fromkeys(sessions, "log_damaged") | {sessions[0]: None}  # specs are not read for a list
        assert listed == {unhurt: None, talked: None, **damaged}
        for session in (talked, *sessions):
            check_error(await api.get(f"agent-sessions/{session}"), 500, "log_damaged")
            refused = await api.post(f"agent-sessions/{session}/messages", {"prompt": "x"})
            check_error(refused, 500, "log_damaged")
        said = await api.post(f"agent-sessions/{unhurt}/messages", {"prompt": "x"})
        assert (await api.events(said.json["runId"]))[-1].type == "result"
        assert "Traceback" not in "".join(server.log)


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[" * 200_000], ids=["not JSON", "too deep"])
async def test_cancelling_an_unreadable_ended_run_changes_nothing(
    tmp_path: Path, http: aiohttp.ClientSession, body: bytes
) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        run = await api.start("hello")
        await api.events(run)
        whole = (await api.cancel(run)).json
        assert whole["status"] == "succeeded"
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        db.execute("UPDATE entries SET body = ? WHERE seq = 1", [body])
        before = db.execute("SELECT count(*), max(id) FROM entries").fetchall()
        db.close()
        server.start()
        listed = (await api.get("agent-runs")).json["runs"]
        assert [(one["status"], one["finalText"]) for one in listed] == [("succeeded", "hi")]
        for _ in range(2):
            assert (await api.cancel(run)).json == whole
        assert (await api.get("agent-runs")).json["runs"] == listed
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        assert db.execute("SELECT count(*), max(id) FROM entries").fetchall() == before
        db.close()


async def test_run_with_damaged_texts_can_be_followed_and_cancelled(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    columns = ("name", "agent", "metadata", "status")
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        fine, saltless, forked, *runs = [
            await api.start("ask", tools=[{"kind": "local", "name": "ask"}]) for _ in range(4 + len(columns))
        ]
        kindless = runs.pop()
        for run in (fine, saltless, forked, kindless, *runs):
            async with api.stream(run) as stream:
                await stream.until("local_tool_call")
        assert (await api.post(f"agent-runs/{forked}/cancel")).status == 200
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        for run, column in zip(runs, columns, strict=True):
            db.execute(f"UPDATE runs SET {column} = CAST(x'fffe' AS TEXT) WHERE key = ?", (_key(run),))
        db.execute("UPDATE runs SET salt = CAST(x'fffe' AS TEXT) WHERE key = ?", (_key(saltless),))
        kind = "UPDATE entries SET kind = CAST(x'ff' AS TEXT) WHERE run = ? AND kind = 'call.opened'"
        db.execute(kind, (_key(kindless),))
        db.execute("UPDATE entries SET body = x'7b' WHERE run = ? AND kind = 'turn.completed'", (_key(forked),))
        db.close()
        server.start()
        listed = (await api.get("agent-runs")).json["runs"]
        codes = {run["id"]: run["errorCode"] for run in listed}
        assert len(listed) == 8 and codes[fine] is None and all(codes[run] == "log_damaged" for run in runs)
        for run in (*runs, kindless):
            assert (await api.get(f"agent-runs/{run}/calls")).status == 200
            assert (await api.post(f"agent-runs/{run}/cancel")).status == 200
            assert (await api.events(run))[-1].type == "cancelled"
        check_error(await api.post(f"agent-runs/{forked}/fork", {"turn": 1}), 500, "log_damaged")
        assert (await api.get(f"agent-runs/{fine}")).json["status"] == "running"
        assert "Traceback" not in "".join(server.log)


def _key(run: str) -> int:
    return int(run[len("run_") : -12], 16)


async def test_message_over_a2a_to_an_unreadable_session_is_refused(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        await stored(api, "hello")
        assert "result" in await rpc(api, "message/send", message(contextId="ctx-1"))
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        db.execute("UPDATE thread_messages SET message = x'7b'")
        db.close()
        server.start()
        before = (await api.get("agent-runs")).json["runs"]
        refused = await rpc(api, "message/send", message("again", messageId="m2", contextId="ctx-1"))
        assert "damaged" in refused["error"]["message"]
        assert (await api.get("agent-runs")).json["runs"] == before
