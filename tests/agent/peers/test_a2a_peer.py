"""An A2A agent as a tool of an agent."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from server.tools.peers import Peer, serving
from weftline import Agent, Engine, ToolFailed, a2a
from weftline.errors import WeftlineError
from weftline.testing import calls

from .small import model, offered


async def polite(request: web.Request) -> web.Response:
    call = await request.json()
    text = call["params"]["message"]["parts"][0]["text"]
    parts = [{"kind": "text", "text": f"{text}: done, key {request.headers.get('x-key')}"}]
    result = {"kind": "message", "role": "agent", "messageId": "m", "parts": parts}
    return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": result})


async def asked(peer: Peer, **options: Any) -> tuple[Any, list[str]]:
    scripted = model(calls("helper", message="the dishes"))
    async with Engine() as engine:
        agent = Agent(scripted, tools=[a2a(peer.url, name="helper", **options)])
        result = await agent.run("Go.", engine=engine)
    return result.calls[0], offered(scripted)


async def test_a_task_is_delegated_and_its_headers_stay_secret() -> None:
    async with serving(polite) as peer:
        call, names = await asked(peer, headers={"X-Key": "k-12345678"})
        assert call.result == "the dishes: done, key [redacted]"
        assert names == ["helper"]
        assert peer.requests[0].headers["x-key"] == "k-12345678"


async def test_peer_that_hangs_up_in_middle_leaves_task_in_doubt() -> None:
    async def rude(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with serving(rude) as peer:
        call, _ = await asked(peer)
        assert (call.ok, call.how) == (False, "in_doubt")
        assert len(peer.requests) == 1


async def test_absent_peer_fails_only_its_call() -> None:
    scripted = model("I did not need it.")
    async with Engine() as engine:
        away = a2a("http://127.0.0.1:9")
        assert (await Agent(scripted, tools=[away]).run("Go.", engine=engine)).status == "succeeded"
        assert offered(scripted) == ["at_127_0_0_1"]
        named = a2a("http://127.0.0.1:9", name="away", description="Knows things.")
        scripted = model(calls("away", message="hi"))
        result = await Agent(scripted, tools=[named]).run("Go.", engine=engine)
    assert not result.calls[0].ok and result.status == "succeeded"
    assert scripted.requests[0].tools[0].description == "Knows things."


def test_a_name_that_no_model_takes_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be named"):
        a2a("https://peer.example.com", name="the peer")


def test_something_that_is_no_url_is_refused_at_once() -> None:
    with pytest.raises((ValueError, WeftlineError, ToolFailed)):
        a2a("peer")
