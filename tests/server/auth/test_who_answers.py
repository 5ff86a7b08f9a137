"""Who answered is what the credential says, whatever the request claims."""

from __future__ import annotations

import asyncio

import pytest

from .kit import Browser, World, check_error

RUNS = "/api/v1/workspaces/acme/agent-runs"
ASKING = {"modelId": "scripted:ask", "tools": [{"kind": "server", "name": "ask_user"}], "prompt": "hi"}
SAID = {"outcome": "answered", "value": "because", "by": "user:boss", "requestedBy": "user:boss"}


async def asked(world: World, credential: str) -> str:
    """Where to answer what a new run asks."""
    run = (await world.call("POST", RUNS, credential=credential, body=ASKING)).json["runId"]
    async with asyncio.timeout(60):
        while not (found := (await world.call("GET", f"{RUNS}/{run}/awaits", credential=credential)).json["awaits"]):
            pass
    return f"{RUNS}/{run}/awaits/{found[0]['id']}"


@pytest.mark.requirement("run.confirm.audit")
async def test_an_answer_is_that_of_the_key_the_user_or_the_app(world: World, browser: Browser) -> None:
    client = await world.client(scopes=["runs:write", "runs:read"])
    code = (await browser.approve(client, scope="runs:write runs:read")).redirect["code"]
    credentials = {
        "key:": await world.key(),
        "user:": (await client.exchange(code)).json["access_token"],
        "app:": await world.own_token("acme", "runs:read", "runs:write"),
    }
    names: set[str] = set()
    for kind, credential in credentials.items():
        place = await asked(world, credential)
        reply = await world.call("POST", place, credential=credential, body=SAID)
        assert reply.status == 200, reply.body
        names.add(by := reply.json["by"])
        assert by.startswith(kind) and len(by) > len(kind) and "boss" not in by
    assert len(names) == 3
    reader = await world.own_token("acme", "runs:read")
    place = await asked(world, credentials["key:"])
    check_error(await world.call("POST", place, credential=reader, body=SAID), 403, "insufficient_scope")
