"""Runs by the name of their agent: waited for at once, or taken up later from anywhere."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from msgspec.json import decode, encode

from weftline.client import ApiError, AsyncClient, NotFound
from weftline.testing import ServerProcess


async def new_agent(client: AsyncClient) -> str:
    """A stored agent; returns its slug."""
    body = {"name": "Greeter", "spec": {"modelId": "scripted:hello", "systemPrompt": "Greet."}}
    made = decode(await client.http.call("POST", "/agents", body=encode(body)))
    return made["slug"]


@pytest.mark.requirement("run.start.forms")
async def test_run_waits_start_returns_handle_and_all_waiters_get_same(
    client: AsyncClient, server: ServerProcess, key: str
) -> None:
    agent = await new_agent(client)
    waited = await client.run("hi", agent_id=agent)
    assert waited.text == "hello"
    run = await client.start("hi", agent_id=agent)
    snapshot = await client.get_run(run.id)
    assert snapshot.id == run.id, "it is durable when the handle is there"
    async with AsyncClient(api_key=key, workspace="acme", base_url=server.url) as another:
        handles = [await one.attach(run.id, dispatch=False) for one in (client, another, another)]
        results = await asyncio.gather(run.result(), *[handle.result() for handle in handles])
        late = await (await another.attach(run.id, dispatch=False)).result()
    assert {(one.run_id, one.text) for one in [*results, late]} == {(run.id, "hello")}
    for call in (client.run, client.start):
        with pytest.raises(NotFound, match="agent"):
            await call("hi", agent_id="nobody")


async def test_client_can_tell_engine_what_protocol_lets_it(client: AsyncClient) -> None:
    since = datetime(2026, 1, 31, tzinfo=UTC)
    run = await client.start(
        "hi",
        model_id="scripted:hello",
        turn_id="turn-7",
        memo={"ticket": 7},
        search_attributes={"Customer": "c1", "Since": since},
        task_queue="gpu",
        retry_policy={"maxAttempts": 3},
    )
    shown = decode(await client.http.call("GET", f"/agent-runs/{run.id}/snapshot"))
    assert (shown["turnId"], shown["memo"], shown["taskQueue"]) == ("turn-7", {"ticket": 7}, "gpu")
    assert shown["searchAttributes"] == {"Customer": "c1", "Since": {"datetime": "2026-01-31T00:00:00+00:00"}}
    assert shown["retryPolicy"]["maxAttempts"] == 3
    await run.result()


async def test_a_run_may_be_given_its_id(client: AsyncClient) -> None:
    name = f"given-{uuid4().hex[:8]}"
    result = await client.run("hi", model_id="scripted:hello", run_id=name)
    assert (result.run_id, result.text) == (name, "hello")
    assert (await (await client.attach(name, dispatch=False)).result()).text == "hello"
    with pytest.raises(ApiError) as refused:
        await client.start("hi", model_id="scripted:hello", run_id=name)
    assert (refused.value.status, refused.value.code) == (409, "run_exists")
    session = await client.create_session(model_id="scripted:hello")
    said = await session.send("hi", run_id=f"{name}-2")
    assert said.run_id == f"{name}-2"
