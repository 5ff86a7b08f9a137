from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from weftline.client import AsyncClient, Client, InvalidSpec, NetworkError, RunCancelled, local_a2a

from .stand_in import StandIn, reply

HEADERS = {"Authorization": "Bearer for-the-peer"}


def peer_of(stand_in: StandIn, results: list[Any]) -> StandIn:
    """An A2A agent that answers with `results`, one after the other."""
    card = {
        "protocolVersion": "0.3.0",
        "name": "Peer",
        "description": "Knows things.",
        "url": f"{stand_in.url}/rpc",
        "version": "1",
        "capabilities": {},
        "skills": [{"id": "s", "name": "Skill", "description": "Of some use."}],
        "x-extra": {"kept": [1, 2.5]},
    }
    left = iter(results)

    async def rpc(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], **next(left)})

    stand_in.on("GET", "/.well-known/agent-card.json", reply(card))
    return stand_in.on("POST", "/rpc", rpc)


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "result": {
            "kind": "message",
            "messageId": "m",
            "role": "agent",
            "parts": [{"kind": "text", "text": text}],
            **fields,
        }
    }


def task(state: str, **fields: Any) -> dict[str, Any]:
    return {"result": {"kind": "task", "id": "t1", "contextId": "c1", "status": {"state": state}, **fields}}


@pytest.mark.requirement("wire.client.a2a_local")
async def test_card_is_fetched_here_and_calls_go_out_from_here(client: AsyncClient, stand_in: StandIn) -> None:
    peer_of(stand_in, [said("one", contextId="c9"), said("two", contextId="c9")])
    peer = local_a2a("peer", stand_in.url, headers=HEADERS)
    run = await client.start("hi", model_id="scripted:peer", tools=[peer])
    result = await run.result()
    assert result.text.startswith("one || two ")
    assert "Knows things." in result.text
    ref = (await run.snapshot()).spec["tools"][0]
    assert (ref["kind"], ref["agentCard"]["x-extra"]) == ("a2a_local", {"kept": [1, 2.5]})
    assert "for-the-peer" not in str(ref)
    call = next(frame for frame in result.frames if frame.type == "local_tool_call")
    assert call.data["agentCard"] == ref["agentCard"]
    assert [one.headers["User-Agent"].split("/")[0] for one in stand_in.asked] == ["weftline-python"] * 3
    assert {one.headers["Authorization"] for one in stand_in.asked} == {"Bearer for-the-peer"}
    first, second = (one.json["params"]["message"] for one in stand_in.to("POST", "/rpc"))
    assert first["parts"] == [{"kind": "text", "text": "first"}]
    assert ("contextId" in first, second["contextId"]) == (False, "c9")


@pytest.mark.requirement("wire.client.a2a_local")
def test_a_card_may_be_given_as_data(sync_client: Client, stand_in: StandIn) -> None:
    peer_of(stand_in, [said("one"), said("two")])
    card = {"name": "Peer", "url": f"{stand_in.url}/rpc"}
    peer = local_a2a("peer", card=card, description="Ask the peer.")
    result = sync_client.run("hi", model_id="scripted:peer", tools=[peer])
    assert result.text == "one || two Ask the peer."
    assert [one.path for one in stand_in.asked] == ["/rpc", "/rpc"]


async def test_task_is_waited_for_and_its_artifact_is_answer(client: AsyncClient, stand_in: StandIn) -> None:
    artifact = {"artifactId": "a", "parts": [{"kind": "text", "text": "made"}]}
    peer_of(stand_in, [task("working"), task("completed", artifacts=[artifact]), said("two")])
    result = await client.run("hi", model_id="scripted:peer", tools=[local_a2a("peer", stand_in.url)])
    assert result.text.startswith("made || two")
    assert [one.json["method"] for one in stand_in.to("POST", "/rpc")] == ["message/send", "tasks/get", "message/send"]


async def test_artifacts_are_part_of_the_answer_and_questions_continue(client: AsyncClient, stand_in: StandIn) -> None:
    question = {"role": "agent", "parts": [{"kind": "text", "text": "Which colour?"}]}
    made = [{"artifactId": "a", "parts": [{"kind": "text", "text": "red"}, {"kind": "data", "data": {"n": 1}}]}]
    done = {"state": "completed", "message": {"role": "agent", "parts": [{"kind": "text", "text": "ok"}]}}
    asking = task("input-required", status={"state": "input-required", "message": question})
    peer_of(stand_in, [asking, task("completed", status=done, artifacts=made)])
    result = await client.run("hi", model_id="scripted:peer", tools=[local_a2a("peer", stand_in.url)])
    asked, _, rest = result.text.partition(" || ")
    assert asked.startswith("Which colour?\n[peer is waiting for an answer") and rest.startswith('ok\nred\n{"n":1} ')
    first, second = (one.json["params"]["message"] for one in stand_in.to("POST", "/rpc"))
    assert ("taskId" in first, second["taskId"], second["contextId"]) == (False, "t1", "c1")


async def test_cancelling_a_run_cancels_the_task_of_its_agent(client: AsyncClient, stand_in: StandIn) -> None:
    working, cancelled = asyncio.Event(), asyncio.Event()

    async def rpc(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        (cancelled if body["method"] == "tasks/cancel" else working).set()
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], **task("working")})

    peer_of(stand_in, []).on("POST", "/rpc", rpc)
    run = await client.start("hi", model_id="scripted:peer", tools=[local_a2a("peer", stand_in.url)])
    async with asyncio.timeout(120):
        ended = asyncio.create_task(run.result())
        await working.wait()
        await run.cancel()
        await cancelled.wait()
        with pytest.raises(RunCancelled):
            await ended


async def test_peer_with_only_version_1_is_addressed_in_it(client: AsyncClient, stand_in: StandIn) -> None:
    state = {"state": "TASK_STATE_COMPLETED"}
    made = {"artifactId": "a", "parts": [{"text": "made"}]}
    left = iter(
        [
            {"task": {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}},
            {"id": "t1", "contextId": "c1", "status": state, "artifacts": [made]},
            {"task": {"id": "t2", "contextId": "c1", "status": {"state": "TASK_STATE_FAILED"}}},
        ]
    )

    async def rpc(request: web.Request) -> web.StreamResponse:
        assert request.headers["A2A-Version"] == "1.0"
        return web.json_response({"jsonrpc": "2.0", "id": (await request.json())["id"], "result": next(left)})

    interfaces = [
        {"url": "/grpc", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
        {"url": "/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
    ]
    card = {"name": "Peer", "description": "Knows things.", "supportedInterfaces": interfaces}
    stand_in.on("GET", "/.well-known/agent-card.json", reply(card)).on("POST", "/rpc", rpc)
    result = await client.run("hi", model_id="scripted:peer", tools=[local_a2a("peer", stand_in.url)])
    assert result.text.startswith("made || ") and "failed" in result.text
    calls = [one.json for one in stand_in.to("POST", "/rpc")]
    assert [call["method"] for call in calls] == ["SendMessage", "GetTask", "SendMessage"]
    sent = calls[2]["params"]["message"]
    assert (sent["role"], sent["contextId"], "kind" in sent) == ("ROLE_USER", "c1", False)


async def test_peer_failure_is_reported_to_the_model(client: AsyncClient, stand_in: StandIn) -> None:
    peer_of(stand_in, [{"error": {"code": -32000, "message": "no budget"}}, task("failed")])
    result = await client.run("hi", model_id="scripted:peer", tools=[local_a2a("peer", stand_in.url)])
    assert "no budget" in result.text
    assert "failed" in result.text


async def test_a_peer_without_a_card_fails_before_the_run_exists(client: AsyncClient, stand_in: StandIn) -> None:
    with pytest.raises(NetworkError):
        await client.run("hi", model_id="scripted:peer", tools=[local_a2a("peer", stand_in.url)])
    assert [one.path for one in stand_in.asked] == ["/.well-known/agent-card.json", "/.well-known/agent.json"]


def test_a_peer_is_given_by_address_or_by_card() -> None:
    with pytest.raises(InvalidSpec):
        local_a2a("peer")
    with pytest.raises(InvalidSpec):
        local_a2a("peer", "http://x", card={"name": "x"})
