"""Forks and lists of calls over HTTP, by the client and by command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from commands import weftline
from weftline.client import AsyncClient, BadRequest, Client, NotFound
from weftline.client.ended import fork
from weftline.testing import ServerProcess


@pytest.mark.requirement("run.fork.at_turn", "run.fork.changes", "run.effect.listing")
def test_fork_over_http_continues_without_asking_the_client_again(sync_client: Client) -> None:
    asked: list[str] = []

    def lookup(key: str) -> str:
        """Looks a key up."""
        asked.append(key)
        return f"the {key}"

    tools = [lookup]
    first = sync_client.run("hi", model_id="scripted:twice", tools=tools, system_prompt="Be brief.")
    assert asked == ["a", "b"] and "the b" in first.text
    forked = sync_client.fork(first.run_id, 2, model_id="scripted:echo", message="And now?")
    with sync_client.attach(forked, tools=tools) as run:
        result = run.result()
    assert "And now?" in result.text and asked == ["a", "b"]
    shown = sync_client.get_run(forked)
    assert shown.forked_from is not None and (shown.forked_from.run_id, shown.forked_from.turn) == (first.run_id, 2)
    assert shown.turns == 1 and shown.model is not None and shown.model.id == "scripted:echo"
    assert [call.name for call in sync_client.calls(first.run_id).items] == ["lookup", "lookup"]
    assert sync_client.calls(forked).items == ()
    (one,) = sync_client.calls(first.run_id, limit=1).items
    assert (one.state, one.how, one.turn) == ("closed", "returned", 0) and one.client is not None


@pytest.mark.requirement("run.fork.changes")
def test_a_fork_that_cannot_be_is_refused(sync_client: Client) -> None:
    first = sync_client.run("hi", model_id="scripted:hello")
    before = len(sync_client.list_runs().items)
    with pytest.raises(BadRequest):
        sync_client.fork(first.run_id, 1)
    with pytest.raises(BadRequest):
        sync_client.fork(first.run_id, 0, model_id="scripted:nope")
    with pytest.raises(BadRequest):
        sync_client.fork(first.run_id, 0, reasoning_level=101)
    with pytest.raises(BadRequest):
        sync_client.fork(first.run_id, 0, budgets={"maxToolTurns": -1})
    with pytest.raises(NotFound):
        sync_client.fork("run_1aaaaaaaaaaaa", 0)
    assert len(sync_client.list_runs().items) == before


@pytest.mark.requirement("run.fork.at_turn", "run.fork.compare")
def test_a_fork_by_command_is_compared_with_its_origin(sync_client: Client, server: ServerProcess) -> None:
    first = sync_client.run("hi", model_id="scripted:hello").run_id
    db = ("--db", str(server.db))
    made = weftline("fork", first, "--turn", "0", "--model", "scripted:echo", "--message", "Again.", *db)
    assert made.code == 0, made
    forked = made.out.strip()
    with sync_client.attach(forked) as run:
        assert "Again." in run.result().text
    compared = json.loads(weftline("compare", first, forked, "--json", *db).out)
    assert compared["first_difference"] == 0 and compared["inherited"]["turns"] == 0
    table = weftline("compare", first, forked, *db).out
    assert "hello" in table and "differ from turn 0" in table
    past = weftline("fork", first, "--turn", "7", *db)
    assert past.code == 1 and "turn 7" in past.err


@pytest.mark.requirement("run.fork.changes")
async def test_fork_may_change_tools_and_budgets(client: AsyncClient) -> None:
    first = (await client.run("hi", model_id="scripted:hello")).run_id
    tools = [{"kind": "local", "name": "lookup", "parameters": {"type": "object"}}]
    changes = {"turn": 0, "modelId": "scripted:budget", "tools": tools, "toolBudgets": {"lookup": {"maxCalls": 1}}}
    made = await fork(client.http, first, changes)
    async with await client.attach(made, tools=[lookup]) as run:
        names = [type(event).__name__ async for event in run.events()]
    assert "BudgetExceeded" in names and names.count("CallOpened") >= 1
    before = (await client.list_runs()).items
    for wrong in (
        {"tools": [{"kind": "server", "name": "nope"}]},
        {"agentId": "agent_1"},
        {"budgets": {"maxToolTurns": -1}},
    ):
        with pytest.raises(BadRequest):
            await fork(client.http, first, {"turn": 0, **wrong})
    assert [run.id for run in (await client.list_runs()).items] == [run.id for run in before]


CHEAP = {"maxToolCalls": 1, "perToolTimeoutMs": {"look*": 5000}}


@pytest.mark.requirement("run.fork.changes")
@pytest.mark.parametrize("kind", ["agent", "session"])
async def test_fork_keeps_what_agent_or_session_of_its_origin_fixes(kind: str, client: AsyncClient) -> None:
    ref = {"kind": "local", "name": "lookup", "parameters": {"type": "object"}}
    spec = {"modelId": "scripted:twice", "systemPrompt": "Be brief.", "tools": [ref], "policy": CHEAP}
    if kind == "agent":
        agent = await post(client, "/agents", {"name": "forkable", "spec": spec})
        body = {"agentId": agent["id"], "prompt": "hi"}
        path = "/agent-runs"
    else:
        session = (await post(client, "/agent-sessions", spec))["sessionId"]
        path, body = f"/agent-sessions/{session}/messages", {"prompt": "hi"}
    first = (await post(client, path, body))["runId"]
    await ended(client, first)
    other = [{**ref, "name": "other"}]
    loose = {"policy": {"maxToolCalls": 50, "perToolTimeoutMs": {"lookup": 60_000}}, "tools": other}
    for changes in ({}, loose):
        forked = await fork(client.http, first, {"turn": 0, **changes})
        async with await client.attach(forked, tools=[lookup]) as run:
            _ = [event async for event in run.events()]
        shown = json.loads(await client.http.call("GET", f"/agent-runs/{forked}"))["spec"]
        assert shown["policy"]["maxToolCalls"] == 1 and shown["systemPrompt"] == "Be brief."
        assert set(shown["policy"]["perToolTimeoutMs"].values()) == {5000}
        if changes and kind == "agent":
            assert [tool["name"] for tool in shown["tools"]] == ["lookup", "other"]
    with pytest.raises(BadRequest, match="systemPrompt"):
        await fork(client.http, first, {"turn": 0, "systemPrompt": "Anything goes."})


@pytest.mark.requirement("run.fork.changes")
async def test_fork_must_be_given_tools_with_secrets_again(client: AsyncClient) -> None:
    tool = {
        "kind": "mcp",
        "name": "docs",
        "url": "http://127.0.0.1:9/mcp",
        "headers": {"authorization": "Bearer s3cret"},
    }
    body = {"modelId": "scripted:hello", "prompt": "hi", "tools": [tool]}
    first = (await post(client, "/agent-runs", body))["runId"]
    await ended(client, first)
    with pytest.raises(BadRequest, match="give docs again"):
        await fork(client.http, first, {"turn": 0})
    await ended(client, await fork(client.http, first, {"turn": 0, "tools": [tool]}))


async def post(client: AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    return json.loads(await client.http.call("POST", path, body=json.dumps(body).encode()))


async def ended(client: AsyncClient, run_id: str) -> None:
    async with await client.attach(run_id, tools=[lookup]) as run:
        _ = [event async for event in run.events()]


def lookup(key: str) -> str:
    """Looks a key up."""
    return key
