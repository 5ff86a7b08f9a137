"""Who answered is what the credential says, whatever the request claims."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from weftline.tools.asking import Ask
from weftline.tools.base import Tool
from weftline.tools.builtin import builtin_tools
from weftline.tools.function import FunctionTool

from .kit import Browser, World, check_error

RUNS = "/api/v1/workspaces/acme/agent-runs"
ASKING = {"modelId": "scripted:ask", "tools": [{"kind": "server", "name": "ask_user"}], "prompt": "hi"}
SAID = {"outcome": "answered", "value": "because", "by": "user:boss", "requestedBy": "user:boss"}


PAYING = {"modelId": "scripted:pay", "tools": [{"kind": "server", "name": "pay"}], "prompt": "hi"}
APPROVERS: list[str] = []


class Pay(FunctionTool[..., Any, object]):
    def asks_people(self, args: bytes) -> Ask | None:
        return Ask("Pay?", approvers=tuple(APPROVERS))


@pytest.fixture
def tools() -> Mapping[str, Tool]:
    def pay(amount: int) -> str:
        """Pays."""
        return f"paid {amount}"

    return {**builtin_tools(), "pay": Pay(pay)}


async def asked(world: World, credential: str, spec: dict[str, Any] = ASKING) -> str:
    """Where to answer what a new run asks."""
    run = (await world.call("POST", RUNS, credential=credential, body=spec)).json["runId"]
    async with asyncio.timeout(60):
        while not (found := (await world.call("GET", f"{RUNS}/{run}/awaits", credential=credential)).json["awaits"]):
            pass
    return f"{RUNS}/{run}/awaits/{found[0]['id']}"


@pytest.mark.requirement("run.confirm.audit")
async def test_answer_is_that_of_key_user_or_app(world: World, browser: Browser) -> None:
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


@pytest.mark.requirement("run.grant.identity")
async def test_approval_belongs_to_the_credential_and_named_people(world: World, browser: Browser) -> None:
    client = await world.client(scopes=["runs:write", "runs:read"])
    code = (await browser.approve(client, scope="runs:write runs:read")).redirect["code"]
    user, key = (await client.exchange(code)).json["access_token"], await world.key()
    names: dict[str, str] = {}
    for credential in (user, key):  # anybody may decide
        APPROVERS[:] = []
        said = {"outcome": "approved", "by": "user:boss", "approvedBy": "user:boss"}
        reply = await world.call("POST", await asked(world, key, PAYING), credential=credential, body=said)
        assert reply.status == 200, reply.body
        names[credential] = reply.json["by"]
    assert names[user].startswith("user:") and names[key].startswith("key:")

    APPROVERS[:] = [names[user]]
    place = await asked(world, key, PAYING)
    for outcome in ("approved", "denied"):
        said = {"outcome": outcome, "by": names[user]}
        refused = check_error(await world.call("POST", place, credential=key, body=said), 403, "not_approver")
        assert refused["approvers"] == [names[user]]
    run = place.partition("/awaits/")[0]
    (still,) = (await world.call("GET", f"{run}/awaits", credential=key)).json["awaits"]
    assert still["approvers"] == [names[user]] and place.endswith(f"/{still['id']}")
    taken = await world.call("POST", place, credential=user, body={"outcome": "approved"})
    assert taken.json["by"] == names[user]
    (grant,) = (await world.call("GET", f"{run}/grants", credential=key)).json["grants"]
    assert grant["by"] == names[user]
