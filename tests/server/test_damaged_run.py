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

from .kit import Api, check_error

SCRIPTS: dict[str, Any] = {
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "done"}]},
    "hello": {"turns": [{"text": "hi"}]},
}


@pytest.mark.requirement("wire.run.failure_after_accept")
async def test_a_run_whose_log_does_not_read_ends_with_one_worker_error_and_the_others_go_on(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
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


async def test_what_of_a_store_cannot_be_read_is_told_to_whoever_asks_for_it_and_to_who_makes_a_backup(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        runs = [await api.start("hello") for _ in range(4)]
        whole = [await api.events(run) for run in runs]
        assert server.terminate() == 0
        db = apsw.Connection(str(server.db / "weftline.db"))
        db.execute("UPDATE entries SET body = substr(body, 2) WHERE run = 2 AND seq = 1")
        db.execute("UPDATE entries SET body = x'7b' WHERE run = 3 AND kind = 'run.ended'")
        db.execute("UPDATE deltas SET bodies = x'22' WHERE run = 4")
        db.close()
        server.start()
        for run in runs[1:3]:
            error = check_error(await api.get(f"agent-runs/{run}"), 500, "log_damaged")
            assert run in error["message"]
        assert (await api.snapshot(runs[3]))["finalText"] == "hi"
        listed = {run["id"]: run["errorCode"] for run in (await api.get("agent-runs")).json["runs"]}
        assert listed == {runs[0]: None, runs[1]: None, runs[2]: "log_damaged", runs[3]: None}
        assert await api.events(runs[0]) == whole[0]
        for run, before in zip(runs[2:], whole[2:], strict=True):
            *rest, last = await api.events(run)
            assert rest == before[: len(rest)] and (last.type, last["code"]) == ("error", "log_damaged")
        assert "Traceback" not in "".join(server.log)
        copy = tmp_path / "copy"
        done = await weftline_beside("backup", str(copy), "--db", str(server.db))
        assert (done.code, done.out) == (1, f"{copy}\n")
        assert "cannot be read: 3 (" in done.err and all(run in done.err for run in runs[1:])
        done = await weftline_beside("restore", str(copy), "--json", "--db", str(tmp_path / "again"))
        assert done.code == 0 and json.loads(done.out)["unreadable"] == 3 and runs[1] in done.err
