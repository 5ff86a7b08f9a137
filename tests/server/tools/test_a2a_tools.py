"""A2A peers: each form they come in, and a real peer of the official SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import uvicorn
from a2a.helpers import new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface
from aiohttp import web
from starlette.applications import Starlette

from weftline.messages import Text
from weftline.net.dial import Dialer
from weftline.tools.a2a import A2AForms, A2ATool, answer_text
from weftline.tools.base import ToolContext, ToolOutput

from .peers import serving

ASK = b'{"message":"the dishes"}'


def tool(dialer: Dialer, url: str, **options: Any) -> A2ATool:
    return A2ATool("peer", url=url, dialer=dialer, forms=A2AForms(), headers={"X-Key": "k"}, **options)


def text(output: ToolOutput) -> str:
    assert isinstance(output.parts[0], Text)
    return output.parts[0].text


def rpc(call: Any, result: Any) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": result})


def message(text: str) -> dict[str, Any]:
    return {"kind": "message", "role": "agent", "messageId": "m", "parts": [{"kind": "text", "text": text}]}


@pytest.mark.requirement("wire.tools.a2a_dial")
@pytest.mark.parametrize("path", ["/a", "/a/rpc", "/a/message:send", "/a/message/send"])
async def test_every_form_is_found(dialer: Dialer, context: ToolContext, path: str) -> None:
    async def peer(request: web.Request) -> web.Response:
        if request.path != path:
            return web.Response(status=405 if request.path == "/a" else 404)
        call = await request.json()
        sent = call["params"]["message"]
        assert sent["role"] == "user" and sent["parts"] == [{"kind": "text", "text": "the dishes"}]
        return rpc(call, message("done")) if path in ("/a", "/a/rpc") else web.json_response(message("done"))

    order = ["/a", "/a/rpc", "/a/message:send", "/a/message/send"]
    async with serving(peer) as running:
        one = tool(dialer, f"{running.url}/a", context_id="c-1")
        assert text(await one.invoke(ASK, context)) == "done"
        assert running.paths == order[: order.index(path) + 1]
        assert text(await one.invoke(ASK, context)) == "done"
        assert running.paths[-1] == path and len(running.paths) == order.index(path) + 2
    for request in running.requests:
        assert request.headers["X-Key"] == "k" and request.json["params"]["message"]["contextId"] == "c-1"


ANSWERS: list[tuple[dict[str, Any], str | None]] = [
    (message("said"), "said"),
    ({"parts": [{"type": "text", "text": "a"}, {"kind": "data", "data": {}}, {"text": "b"}]}, "a\nb"),
    ({"status": {"state": "completed", "message": message("ok")}, "artifacts": [message("made")]}, "ok\nmade"),
    ({"status": {"state": "completed", "message": message("ok")}, "artifacts": [{"parts": []}]}, "ok"),
    ({"status": {"state": "completed", "message": message("once")}, "artifacts": [message("once")]}, "once"),
    (
        {"status": {"message": message('{ "n": 4 }')}, "artifacts": [{"parts": [{"data": {"n": 4}}]}]},
        '{"n":4}',
    ),
    (
        {"status": {"state": "completed", "message": message("ok")}, "artifacts": [{"parts": [{"data": [1]}]}]},
        "ok\n[1]",
    ),
    ({"status": {"state": "completed"}, "artifacts": [message("first"), message("last")]}, "first\nlast"),
    (
        {"artifacts": [{"parts": [{"text": "see"}, {"data": {"n": 4}}, {"url": "https://x/a"}]}]},
        'see\n{"n":4}\n[file: https://x/a]',
    ),
    (
        {"status": {"state": "input-required", "message": message("which?")}, "artifacts": [message("draft")]},
        "which?\ndraft",
    ),
    ({"artifacts": [{"parts": [{"kind": "data", "data": {"n": 4}}]}]}, '{"n":4}'),
    ({"parts": [{"data": [1]}], "status": {"message": message("said")}}, "said"),
    ({"parts": [{"kind": "file", "file": {"name": "a.pdf", "uri": "https://x/a"}}]}, "[file: a.pdf, https://x/a]"),
    ({"parts": [{"raw": "AAAA", "mediaType": "image/png"}]}, "[file: image/png]"),
    ({"status": {"state": "working"}}, None),
]


@pytest.mark.requirement("wire.tools.a2a_dial")
@pytest.mark.parametrize(("result", "expected"), ANSWERS)
def test_the_text_of_an_answer_is_found(result: dict[str, Any], expected: str | None) -> None:
    assert answer_text(result) == expected


async def test_an_error_of_the_agent_itself_is_not_asked_twice(dialer: Dialer, context: ToolContext) -> None:
    async def peer(request: web.Request) -> web.Response:
        call = await request.json()
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32603, "message": "no mood"}})

    async with serving(peer) as running:
        output = await tool(dialer, running.url).invoke(ASK, context)
    assert output.is_error and "no mood" in text(output) and len(running.requests) == 1


async def test_a_failed_task_is_an_error_result(dialer: Dialer, context: ToolContext) -> None:
    async def peer(request: web.Request) -> web.Response:
        return rpc(await request.json(), {"kind": "task", "status": {"state": "failed", "message": message("broke")}})

    async with serving(peer) as running:
        output = await tool(dialer, running.url).invoke(ASK, context)
    assert output.is_error and text(output) == "broke"


async def test_message_that_may_have_arrived_is_not_sent_differently(dialer: Dialer, context: ToolContext) -> None:
    async def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with serving(cut) as running:
        output = await tool(dialer, running.url).invoke(ASK, context)
    assert output.is_error and "may or may not" in text(output) and len(running.requests) == 1


async def test_nobody_at_home_is_told(dialer: Dialer, context: ToolContext) -> None:
    output = await tool(dialer, "http://127.0.0.1:9/").invoke(ASK, context)
    assert output.is_error and "Could not connect" in text(output)


async def test_a_card_leads_to_its_endpoint(dialer: Dialer, context: ToolContext) -> None:
    async def peer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"name": "x", "url": "/deep/endpoint", "protocolVersion": "0.3.0"})
        if request.path != "/deep/endpoint":
            return web.Response(status=404)
        return rpc(await request.json(), message("found"))

    async with serving(peer) as running:
        output = await tool(dialer, f"{running.url}/.well-known/agent-card.json").invoke(ASK, context)
    assert text(output) == "found"
    assert running.paths == ["/.well-known/agent-card.json", "/deep/endpoint"]
    assert running.requests[0].headers["X-Key"] == "k"


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("name", ["agent-card.json", "agent.json"])
async def test_base_address_leads_to_its_card_and_card_to_endpoint(
    dialer: Dialer, context: ToolContext, version: str, name: str
) -> None:
    async def peer(request: web.Request) -> web.Response:
        if request.path == f"/team/.well-known/{name}":
            interface = {"url": "/deep/endpoint", "protocolBinding": "JSONRPC", "protocolVersion": version}
            return web.json_response({"name": "x", "supportedInterfaces": [interface]})
        if request.path != "/deep/endpoint":
            return web.Response(status=404)
        call = await request.json()
        sent = call["params"]["message"]
        if version == "0.3":
            assert (call["method"], sent["role"]) == ("message/send", "user")
            return rpc(call, message("found"))
        assert request.headers["A2A-Version"] == "1.0"
        assert (call["method"], sent["role"], sent["parts"]) == ("SendMessage", "ROLE_USER", [{"text": "the dishes"}])
        artifact = {"artifactId": "a", "parts": [{"text": "found"}]}
        return rpc(call, {"task": {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [artifact]}})

    async with serving(peer) as running:
        one = tool(dialer, f"{running.url}/team")
        assert text(await one.invoke(ASK, context)) == "found"
        first = len(running.paths)
        assert text(await one.invoke(ASK, context)) == "found"
        assert running.paths[first:] == ["/deep/endpoint"]


@pytest.mark.parametrize("newer", [False, True])
async def test_running_task_is_polled_until_it_is_done(dialer: Dialer, context: ToolContext, newer: bool) -> None:
    states = iter(["working", "completed"])

    async def peer(request: web.Request) -> web.Response:
        call = await request.json()
        if newer != (call["method"] in ("SendMessage", "GetTask")):
            return web.json_response({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "what?"}})
        state = next(states)
        told = f"TASK_STATE_{state.upper()}" if newer else state
        task = {"id": "t1", "status": {"state": told, "message": message(state)}}
        return rpc(call, {"task": task} if call["method"] == "SendMessage" else task)

    async with serving(peer) as running:
        assert text(await tool(dialer, running.url).invoke(ASK, context)) == "completed"
    assert [one.json["method"] for one in running.requests][-1] == ("GetTask" if newer else "tasks/get")


async def test_without_a_card_its_address_still_leads_to_the_peer(dialer: Dialer, context: ToolContext) -> None:
    async def peer(request: web.Request) -> web.Response:
        if request.method == "POST" and request.path == "/x/rpc":
            return rpc(await request.json(), message("found"))
        return web.Response(status=404)

    async with serving(peer) as running:
        output = await tool(dialer, f"{running.url}/x/.well-known/agent.json").invoke(ASK, context)
    assert text(output) == "found"


class Echo(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await event_queue.enqueue_event(new_text_message(f"echo {context.get_user_input()}"))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


@asynccontextmanager
async def official(*, binding: str, older: bool) -> AsyncGenerator[str]:
    """A peer made with the official SDK; yields the address of its card."""
    server = uvicorn.Server(uvicorn.Config(Starlette(), port=0, log_level="critical", ws="none", lifespan="off"))
    sock = server.config.bind_socket()
    # The server does so too, but only when its task has run.
    sock.listen()
    base = f"http://127.0.0.1:{sock.getsockname()[1]}"
    card = AgentCard(
        name="echo",
        description="Echoes.",
        version="1",
        capabilities=AgentCapabilities(),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        supported_interfaces=[AgentInterface(url=base, protocol_binding=binding, protocol_version="1.0")],
    )
    handler = DefaultRequestHandler(agent_executor=Echo(), task_store=InMemoryTaskStore(), agent_card=card)
    make: Callable[..., list[Any]] = create_jsonrpc_routes if binding == "JSONRPC" else create_rest_routes
    place = {"rpc_url": "/"} if binding == "JSONRPC" else {}
    routes = [*create_agent_card_routes(card), *make(handler, enable_v0_3_compat=older, **place)]
    server.config.app = Starlette(routes=routes)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield base
    finally:
        server.should_exit = True
        await task


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("path", ["/.well-known/agent-card.json", ""])
async def test_a_peer_of_the_official_sdk_answers(
    dialer: Dialer, context: ToolContext, binding: str, older: bool, path: str
) -> None:
    async with official(binding=binding, older=older) as base:
        output = await tool(dialer, base + path).invoke(ASK, context)
    assert (text(output), output.is_error) == ("echo the dishes", False)


@pytest.mark.requirement("wire.tools.a2a_shape")
def test_the_model_sees_one_required_message(dialer: Dialer) -> None:
    schema = msgspec.json.decode(bytes(tool(dialer, "http://x/").spec.parameters))
    assert schema["required"] == ["message"] and list(schema["properties"]) == ["message"]
    assert schema["properties"]["message"]["type"] == "string"
