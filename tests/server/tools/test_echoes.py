"""Peers that repeat every secret they are sent: none of it is read, stored or logged."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from weftline.testing import ServerProcess

from ..kit import Api, Json, check_error, of_type
from .peers import Peer, missing, serving

TOKEN = "sesame-0123456789"
IN_QUERY = "query-abcdef0123"
PASSWORD = "pass-9876543210"
SECRETS = (TOKEN, IN_QUERY, PASSWORD)
HEADERS = {"X-Secret": f"Bearer {TOKEN}"}


def sent(request: web.Request) -> str:
    """Everything secret in a request, as errors and debug pages like to show it."""
    values = [*request.headers.values(), request.raw_path, *request.query.values()]
    values += [value.removeprefix("Bearer ") for value in request.headers.getall("X-Secret", [])]
    if "Authorization" in request.headers:
        values.append(b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode())
    return f"you sent {' '.join(values)}"


async def plain(request: web.Request) -> web.Response:
    return web.json_response({"echo": sent(request)})


async def refusing(request: web.Request) -> web.Response:
    return web.Response(status=401, reason=f"No {TOKEN}", text=sent(request))


async def a2a_message(request: web.Request) -> web.Response:
    parts = [{"kind": "text", "text": sent(request)}]
    return web.json_response({"jsonrpc": "2.0", "id": 1, "result": {"kind": "message", "parts": parts}})


async def a2a_error(request: web.Request) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": sent(request)}})


async def a2a_unknown(request: web.Request) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": sent(request)}})


def mcp_server(*, failing: str = "") -> Callable[[web.Request], Any]:
    """An MCP server whose list, tools and errors echo. `failing` is the method that it answers with an error."""

    async def answer(request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405)
        call = await request.json()
        if "id" not in call:
            return web.Response(status=202)
        echo = sent(request)
        results: Json = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": echo, "version": "1"},
            },
            "tools/list": {
                "tools": [{"name": "add", "description": echo, "inputSchema": {"type": "object", "description": echo}}]
            },
            "tools/call": {"content": [{"type": "text", "text": echo}, resource(echo)], "isError": False},
        }
        if call["method"] == failing:
            return web.json_response({"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32000, "message": echo}})
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": results[call["method"]]})

    return answer


def resource(text: str) -> Json:
    return {"type": "resource", "resource": {"uri": f"file:///{TOKEN}", "mimeType": "text/plain", "text": text}}


async def stored(api: Api, peer: Peer) -> Json:
    tool = {
        "name": "get_weather",
        "url": with_secrets(peer.url),
        "headers": {"X-Secret": "Bearer {{secrets.TOKEN}}"},
        "secrets": {"TOKEN": TOKEN},
    }
    made = await api.post("tools", tool)
    assert made.status == 201, made.body
    assert not leaks(str(made.json), str((await api.get("tools")).json)), made.json
    return {"kind": "mantyx", "id": made.json["id"]}


async def a2a(api: Api, peer: Peer) -> Json:
    return {"kind": "a2a", "name": "peer", "agentCardUrl": with_secrets(peer.url), "headers": HEADERS}


async def mcp(api: Api, peer: Peer) -> Json:
    return {"kind": "mcp", "name": "facts", "url": with_secrets(peer.url), "headers": HEADERS}


def with_secrets(url: str) -> str:
    return f"{url.replace('://', f'://user:{PASSWORD}@')}/api?token={IN_QUERY}"


def leaks(*texts: str) -> list[str]:
    return [secret for secret in SECRETS for text in texts if secret in text]


@pytest.mark.parametrize(
    ("kind", "answer", "script"),
    [
        (stored, plain, "stored"),
        (stored, refusing, "stored"),
        (a2a, a2a_message, "delegate"),
        (a2a, a2a_error, "delegate"),
        (a2a, a2a_unknown, "delegate"),
        (a2a, refusing, "delegate"),
        (mcp, mcp_server(), "add"),
        (mcp, mcp_server(), "described_facts"),
        (mcp, mcp_server(failing="tools/call"), "add"),
        (mcp, mcp_server(failing="tools/list"), "unavailable"),
        (mcp, mcp_server(failing="initialize"), "unavailable"),
        (mcp, refusing, "unavailable"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_secret_that_peer_repeats_is_shown_and_stored_nowhere(
    server: ServerProcess, api: Api, kind: Any, answer: Any, script: str
) -> None:
    async with serving(answer) as peer:
        tool = await kind(api, peer)
        run = await api.start(script, tools=[tool])
        frames = await api.events(run)
        session = await api.session(script, tools=[tool])
        await api.events(await api.send(session))
        assert peer.requests, "nobody was asked"
        credentials = peer.requests[-1].headers
        assert credentials["X-Secret"] == f"Bearer {TOKEN}" and credentials["Authorization"].startswith("Basic ")
        assert f"token={IN_QUERY}" in peer.requests[-1].path
    text = str([frame.raw for frame in frames])
    assert frames[-1].type == "result" and ("you sent" not in text or "[redacted]" in text), text
    shown = [text, str(await api.snapshot(run)), str((await api.get(f"agent-sessions/{session}")).json)]
    assert leaks(*shown) == []
    at_rest = b"".join(path.read_bytes() for path in server.db.iterdir() if path.is_file())
    assert [secret for secret in SECRETS if secret.encode() in at_rest] == []
    assert leaks("".join(server.log)) == []


async def test_addresses_with_credentials_are_shown_without_them(api: Api) -> None:
    url = with_secrets("https://peer.example")
    shown = "https://[redacted]@peer.example/api?token=[redacted]"
    hook = (await api.post("webhooks", {"url": url})).json
    assert hook["url"] == shown and (await api.get("webhooks")).json["webhooks"][0]["url"] == shown
    provider = {"name": "mine", "family": "anthropic", "apiKey": "sk-1", "baseUrl": url, "models": ["m"]}
    made = (await api.post("providers", provider)).json
    assert made["baseUrl"] == shown and (await api.get("providers")).json["providers"][0]["baseUrl"] == shown
    # Sent as it was read, it stays what it is: the key need not be sent again.
    assert (await api.call("PATCH", f"providers/{made['id']}", {"baseUrl": shown, "name": "own"})).status == 200
    tool = (await api.post("tools", {"name": "x", "url": f"{url}&units=metric&q={{{{q}}}}", "parameters": Q})).json
    assert tool["url"] == f"{shown}&units=metric&q={{{{q}}}}"
    assert (await api.call("PATCH", f"tools/{tool['id']}", {"url": tool["url"]})).status == 200
    for kind, field in (("mcp", "url"), ("a2a", "agentCardUrl")):
        spec = {"modelId": "scripted:offered", "tools": [{"kind": kind, "name": "t", field: url}]}
        agent = (await api.post("agents", {"name": "x", "spec": spec})).json
        assert agent["spec"]["tools"] == [{"kind": kind, "name": "t", field: shown}]


Q: Json = {"type": "object", "properties": {"q": {"type": "string"}}}


async def test_webhook_answers_are_stored_without_secrets(api: Api) -> None:
    async def repeating(request: web.Request) -> web.Response:
        return web.Response(status=500, text=f"{request.raw_path} {request.headers['Authorization']} {PASSWORD}")

    async with serving(repeating) as peer:
        hook = (await api.post("webhooks", {"url": with_secrets(peer.url)})).json
        await api.play("offered")
        found: list[Json] = []
        while not found or not found[0]["attempts"]:
            found = (await api.get(f"webhooks/{hook['id']}/deliveries")).json["deliveries"]
        await api.call("DELETE", f"webhooks/{hook['id']}")
    assert found[0]["lastError"] == "HTTP 500: /api?token=[redacted] Basic [redacted]= [redacted]"


MORE: list[Json] = [{}, {"secrets": {"OTHER": "x"}}, {"headers": {}}, {"name": "other"}]


async def test_a_tools_secrets_do_not_follow_it_to_another_origin(api: Api) -> None:
    async with serving(plain) as thief, serving(plain) as owner:
        made = (
            await api.post(
                "tools",
                {
                    "name": "get_weather",
                    "url": f"{owner.url}/a",
                    "headers": {"X-Secret": "{{secrets.TOKEN}}"},
                    "secrets": {"TOKEN": TOKEN},
                },
            )
        ).json
        path = f"tools/{made['id']}"
        port = owner.url.rpartition(":")[2]
        for url in (thief.url, f"http://localhost:{port}/a", owner.url.replace("http:", "https:")):
            for more in MORE:
                body = check_error(await api.call("PATCH", path, {"url": url, **more}), 400, "invalid_request")
                assert [issue["path"] for issue in body["issues"]] == ["secrets.TOKEN"], body
        assert (await api.get(path)).json == made
        # The same origin, however it is spelled, keeps them.
        same = owner.url.replace("127.0.0.1", "１２７.0.0.1")
        assert (await api.call("PATCH", path, {"url": f"{same}/b"})).status == 200
        await api.play("stored", tools=[{"kind": "mantyx", "id": made["id"]}])
        assert owner.requests[-1].path == "/b?city=%C3%85rhus+%26+co&days=2"
        assert owner.requests[-1].headers["X-Secret"] == TOKEN
        # Given again, or given up, it may go.
        moved = await api.call("PATCH", path, {"url": thief.url, "secrets": {"TOKEN": "another"}})
        assert moved.status == 200, moved.body
        await api.play("stored", tools=[{"kind": "mantyx", "id": made["id"]}])
        assert thief.requests[-1].headers["X-Secret"] == "another"
        bare = await api.call("PATCH", path, {"url": owner.url, "headers": {}, "secrets": {"TOKEN": None}})
        assert bare.status == 200, bare.body


@pytest.mark.parametrize(("kind", "field"), [("mcp", "url"), ("a2a", "agentCardUrl")])
async def test_agents_secrets_do_not_follow_its_tool_to_another_origin(api: Api, kind: str, field: str) -> None:
    def definition(url: str, value: str) -> Json:
        tool = {"kind": kind, "name": "peer", field: url, "headers": {"X-Secret": value}}
        return {"name": "Helper", "spec": {"modelId": "scripted:delegate", "tools": [tool]}}

    answer = a2a_message if kind == "a2a" else missing  # what they are asked is what counts
    async with serving(answer) as owner, serving(answer) as thief:
        url = f"{owner.url}/api?token={IN_QUERY}"
        agent = (await api.post("agents", definition(url, TOKEN))).json
        path = f"agents/{agent['id']}"
        shown = agent["spec"]["tools"][0][field]
        assert IN_QUERY not in shown
        for wrong in (f"{thief.url}/api", thief.url, shown.replace(owner.url, thief.url)):
            check_error(await api.call("PUT", path, definition(wrong, "[redacted]")), 400, "invalid_request")
        # What was read can be sent back.
        again = await api.call("PUT", path, {"name": "Other", "spec": agent["spec"]})
        assert again.status == 200, again.body
        run = (await api.post("agent-runs", {"agentId": agent["id"], "prompt": "hi"})).json["runId"]
        await api.events(run)
        assert owner.requests[0].headers["X-Secret"] == TOKEN and IN_QUERY in owner.requests[0].path
        # Nor does a run get them to another address by naming the tool anew.
        bare = {"kind": kind, "name": "peer", field: thief.url}
        run = (await api.post("agent-runs", {"agentId": agent["id"], "prompt": "hi", "tools": [bare]})).json["runId"]
        await api.events(run)
        assert thief.requests and not any("X-Secret" in request.headers for request in thief.requests)


async def test_a_card_that_names_another_origin_gets_no_headers_there(api: Api) -> None:
    async with serving(a2a_message) as elsewhere:

        async def card(request: web.Request) -> web.Response:
            return web.json_response({"name": "x", "url": f"{elsewhere.url}/rpc"})

        async with serving(card) as peer:
            tool = {"kind": "a2a", "name": "peer", "agentCardUrl": f"{peer.url}/agent-card.json", "headers": HEADERS}
            frames = await api.play("delegate", tools=[tool])
    assert of_type(frames, "tool_result")[0]["ok"] and elsewhere.paths == ["/rpc"]
    assert peer.requests[0].headers["X-Secret"] == HEADERS["X-Secret"]
    assert "X-Secret" not in elsewhere.requests[0].headers
