"""Clients that claim what they carry out, one beside the other, and killed."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from forked import python
from weftline.client import AsyncClient, Client, InvalidSpec, tool
from weftline.events import CallClaimed, CallOpened
from weftline.testing import ServerProcess

from .conftest import SCRIPTS
from .stand_in import StandIn, hybrid, stream, success, when

HOLDER = """
import sys, time
from weftline.client import Client, tool

@tool
def lookup(key: str) -> str:
    "Never returns."
    time.sleep(1000)
    return ""

url, key, run = sys.argv[1:]
with Client(api_key=key, workspace="acme", base_url=url) as client:
    client.attach(run, tools=[lookup], lease_s=1).result()
"""


def create(url: str, key: str) -> str:
    """A run whose creator goes away at once."""
    spec = {"modelId": "scripted:lookup", "prompt": "hi", "tools": [{"kind": "local", "name": "lookup"}]}
    request = Request(f"{url}/api/v1/workspaces/acme/agent-runs", json.dumps(spec).encode(), {"X-API-Key": key})
    with urlopen(request) as response:
        return json.load(response)["runId"]


@pytest.mark.requirement("run.lease.restart")
def test_client_takes_over_a_lease_and_keeps_it_across_restart(tmp_path: Path) -> None:
    began, go_on, carried_out = threading.Event(), threading.Event(), list[str]()

    @tool
    def lookup(key: str) -> str:
        """Looks something up."""
        carried_out.append(key)
        began.set()
        assert go_on.wait(60)
        return "42"

    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        key = server.create_key("acme")
        with Client(api_key=key, workspace="acme", base_url=server.url) as client:
            watching = client.attach(create(server.url, key), dispatch=False)
            with python("-c", HOLDER, server.url, key, watching.id) as process:
                try:
                    events = iter(watching)
                    next(event for event in events if isinstance(event, CallClaimed))
                    other = client.attach(watching.id, tools=[lookup], lease_s=2)
                finally:
                    process.kill()
            offer = next(event for event in events if isinstance(event, CallOpened))
            assert offer.attempt == 2
            assert began.wait(60), "nobody took the call over"
            server.kill()
            server.start()
            go_on.set()
            assert other.result().text == "It is 42."
            assert carried_out == ["a"]


@pytest.mark.parametrize("lease_s", [0, 0.5, 601, -1])
async def test_a_lease_that_no_server_gives_is_refused_here(client: AsyncClient, lease_s: float) -> None:
    with pytest.raises(InvalidSpec, match="lease_s"):
        await client.start("hi", model_id="scripted:lookup", lease_s=lease_s)
    with pytest.raises(InvalidSpec, match="lease_s"):
        await client.attach("run_1", lease_s=lease_s)


async def test_an_older_server_gets_plain_results(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    offer = hybrid(2, "local_tool_call", toolUseId="u1", name="lookup", args={"key": "a"})
    answered = threading.Event()
    stand_in.run("run_1", stream(offer), when(answered, stream(success(90))))

    @tool
    def lookup(key: str) -> str:
        """Looks something up."""
        return "42"

    run = await to_stand_in.start("hi", tools=[lookup], lease_s=1)
    await asyncio.to_thread(stand_in.wait_for, "POST", "/agent-runs/run_1/tool-results")
    answered.set()
    await run.result()
    (sent,) = stand_in.to("POST", "/agent-runs/run_1/tool-results")
    assert sent.json == {"toolUseId": "u1", "result": "42"}
