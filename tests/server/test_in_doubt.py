"""A call that a crash leaves in doubt: people and programs are told, not only the model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from commands import weftline
from weftline.client import CallName, Client, server_tool
from weftline.events import CallFinished, CallOpened, TextDelta
from weftline.testing import ServerProcess

from .kit import logged

SCRIPTS: dict[str, Any] = {
    "hello": {"turns": [{"text": "hi"}]},
    "pays": {
        "turns": [
            {"tool_calls": [{"name": "pay", "args": {}}]},
            {"deltas": ["It is ", "uncertain."], "delay_ms": 600_000},
        ]
    },
}
TOOLS = """
import asyncio

import weftline


@weftline.tool
async def pay() -> str:
    "Never returns."
    await asyncio.Event().wait()
    return "paid"
"""


@pytest.mark.requirement("run.effect.listing")
def test_call_in_doubt_is_marked_everywhere(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS, tools=TOOLS, arguments=("--drain", "0")) as server:
        key = server.create_key("acme")
        with Client(api_key=key, workspace="acme", base_url=server.url) as client:
            run = client.start("hi", model_id="scripted:pays", tools=[server_tool("pay")])
            call = next(event for event in run if isinstance(event, CallOpened))
            harmless = client.run("hi", model_id="scripted:hello").run_id
            assert client.get_run(run.id).in_doubt == ()
            server.kill()
            server.start()
            seen = client.attach(run.id)
            result: CallFinished | None = None
            for frame in seen.frames():
                if isinstance(frame.event, CallFinished):
                    result = frame.event
                    assert frame.data["inDoubt"] is True
                elif isinstance(frame.event, TextDelta):
                    break
            assert result is not None and result.how == "in_doubt" and not result.ok
            assert result.call_id == call.call_id

            # While the run goes on, and after its end.
            doubted = (CallName(call.call_id, "pay"),)
            going_on = client.get_run(run.id)
            assert (going_on.status, going_on.in_doubt) == ("running", doubted)
            client.cancel_run(run.id)
            assert client.get_run(run.id).in_doubt == doubted
            assert {one.id: one.in_doubt for one in client.list_runs().items} == {run.id: doubted, harmless: ()}
            (listed,) = client.calls(run.id).items
            assert (listed.run_id, listed.id, listed.name, listed.state) == (run.id, call.call_id, "pay", "in_doubt")
            assert (listed.effect, listed.attempts, listed.how) == ("once", 1, "in_doubt")
            assert listed.digest and listed.idempotency_key and listed.client is None
            times = (listed.opened_at, listed.started_at, listed.closed_at)
            assert None not in times and list(times) == sorted(times, key=str)
            assert client.calls_in_doubt().items == (listed,) and client.calls(harmless).items == ()
            seen.detach()
            run.detach()

        assert len(asyncio.run(logged(server, "is in doubt", run.id, "pay", call.call_id))) == 1
        environment = {"WEFTLINE_API_KEY": key, "WEFTLINE_BASE_URL": server.url, "WEFTLINE_DB": None}
        for options, env in ((("--db", str(server.db)), {}), ((), environment)):
            assert weftline("runs", "list", "-q", "--in-doubt", *options, env=env).out.split() == [run.id]
            assert weftline("calls", "-q", "--in-doubt", *options, env=env).out.split() == [f"{run.id}/{call.call_id}"]
            shown_calls = json.loads(weftline("calls", run.id[:-2], "--json", *options, env=env).out)
            assert [one["idempotencyKey"] for one in shown_calls] == [listed.idempotency_key]
            assert harmless not in weftline("runs", "list", "--in-doubt", "--limit", "1", *options, env=env).out

        shown = weftline("runs", "show", run.id, "--db", str(server.db))
        (line,) = [line for line in shown.out.splitlines() if line.startswith("in doubt")]
        assert "pay" in line and call.call_id in line
        as_json = json.loads(weftline("runs", "show", run.id, "--db", str(server.db), "--json").out)
        assert as_json["inDoubt"] == [{"toolUseId": call.call_id, "name": "pay"}]
