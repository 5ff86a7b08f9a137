"""Requests that wait for the deps of a run which never open: none outlives its client, and a stop answers the rest."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from server.kit import TIMEOUT_S, Api, Json
from weftline.testing import ServerProcess

from .test_serve_file import joined

APP = '''
import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

from weftline import Agent, tool
from weftline.runtime import opening

opening.OPEN_S = 3600.0  # nothing else ends a wait while the test lasts
HERE = Path(__file__).parent


def note(what):
    with (HERE / "notes").open("a") as notes:
        notes.write(f"{what}\\n")


@asynccontextmanager
async def database(run):
    if (HERE / "down").exists():
        note("opening")
        try:
            await asyncio.sleep(3600)
        finally:
            note("given up")
    yield "db"


@tool(confirm="Pay?")
async def pay(n: int) -> str:
    """Pays."""
    return f"Paid {n}."


@tool(external=True)
def look(n: int) -> str:
    """Looks."""
    raise AssertionError


payer = Agent("scripted:pay", name="payer", deps=database, tools=[pay])
looker = Agent("scripted:look", name="looker", deps=database, tools=[look])
'''
SCRIPTS: dict[str, Any] = {
    name: {"turns": [{"tool_calls": [{"name": name, "args": {"n": 5}}]}, {"text": "done"}]} for name in ("pay", "look")
}


class Notes:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "notes"

    def count(self, what: str) -> int:
        return self._path.read_text().split("\n").count(what) if self._path.exists() else 0

    async def until(self, what: str, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.count(what) < count:  # noqa: ASYNC110 - another process writes them
                await asyncio.sleep(0.01)


async def begin(api: Api, agent: str, event: str) -> str:
    """A run that waits for somebody outside."""
    reply = await api.post("agent-runs", {"agentId": agent, "prompt": "x"})
    async with api.stream(reply.json["runId"]) as stream:
        await stream.until(event)
    return reply.json["runId"]


async def test_wait_for_deps_ends_with_its_client_or_server(tmp_path: Path) -> None:
    app, notes = tmp_path / "app.py", Notes(tmp_path)
    app.write_text(APP)
    with ServerProcess(tmp_path, scripts=SCRIPTS, arguments=(str(app),)) as server:
        async with joined(server, "acme") as api:
            pays, looks = await begin(api, "payer", "await_opened"), await begin(api, "looker", "local_tool_call")
            (asked,) = (await api.snapshot(pays))["awaits"]
            claimed = await api.post(f"agent-runs/{looks}/tool-leases", {"toolUseId": "call_0_0", "leaseMs": 600_000})
            assert claimed.status == 200, claimed.body
            await asyncio.to_thread(server.terminate)
            (tmp_path / "down").touch()
            await asyncio.to_thread(server.start)
            api.url = server.url
            result: Json = {"toolUseId": "call_0_0", "result": "seen"}
            lease = {"toolUseId": "call_0_0", "token": claimed.json["token"]}
            approval = f"agent-runs/{pays}/awaits/{asked['id']}", {"outcome": "approved", "args": {"n": 4}}
            waits: list[tuple[str, Json]] = [
                approval,
                (f"agent-runs/{looks}/tool-results", {**result, "token": lease["token"]}),
                (f"agent-runs/{looks}/tool-results/external_0", {"results": [{**result, "token": lease["token"]}]}),
                (f"agent-runs/{looks}/tool-leases/release", lease),
            ]
            for count, (path, body) in enumerate(waits, start=1):
                async with aiohttp.ClientSession() as leaving:
                    sending = asyncio.create_task(Api(leaving, server.url, "acme", api.key).post(path, body))
                    await notes.until("opening", count)
                    assert notes.count("given up") == count - 1
                    sending.cancel()
                    await asyncio.wait([sending])
                await notes.until("given up", count)
            answering = asyncio.create_task(api.post(*approval))
            await notes.until("opening", len(waits) + 1)
            assert await asyncio.to_thread(server.terminate) == 0
            refused = await answering
            assert (refused.status, refused.json["code"]) == (503, "unavailable") and refused.headers["Retry-After"]
