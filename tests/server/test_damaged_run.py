# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""A run that can no longer be carried on: its clients see how it ended, and nobody sees a 5xx."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import apsw
import pytest

from weftline.testing import ServerProcess

from .kit import Api

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
        db.close()
        server.start()
        async with api.stream(run_id) as stream:
            frames = await stream.rest()
        assert [frame.type for frame in frames] == ["started", "error"]
        assert (frames[-1]["code"], frames[-1]["errorClass"]) == ("worker_error", "unknown")
        assert (await api.call("GET", f"agent-runs/{run_id}")).json["status"] == "failed"
        fine = await api.call("POST", "agent-runs", {"modelId": "scripted:hello", "prompt": "x"})
        async with api.stream(fine.json["runId"]) as stream:
            assert (await stream.rest())[-1].type == "result"
