"""What holds for every route: the error shape, no redirects, methods, bodies, health."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from weftline.config import Config
from weftline.net.transport import AiohttpTransport
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.new_engine import new_engine
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.server.routes.every import ROUTES
from weftline.store.memory import MemoryStore
from weftline.testing import ScriptedProvider, ServerProcess, parse_scripts

from .kit import Api, Reply, check_error

NO_SUCH = "run_1000000000000"


@pytest.mark.requirement("wire.http.error_body")
async def test_unknown_routes_and_wrong_methods_have_the_one_error_shape(api: Api) -> None:
    for path in ("/nowhere", "/api/v1", f"{api.base}/agent-runs/a/b/c", f"{api.base}/%00", "/api//v1"):
        check_error(await api.get(path), 404, "not_found")
    for method, path, allow in (
        ("PUT", "agent-runs", "POST"),
        ("DELETE", "models", "GET"),
        ("GET", f"agent-runs/{NO_SUCH}/cancel", "POST"),
        ("PATCH", "agent-sessions/x", "DELETE"),
        ("POST", "/healthz", "GET"),
    ):
        reply = await api.call(method, path)
        check_error(reply, 405, "method_not_allowed")
        assert allow in reply.headers["Allow"].split(", ")


@pytest.mark.requirement("wire.http.error_body")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{}{}",
        b'{"prompt": "\xff"}',
        b'{"prompt": NaN}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"prompt": "a", "n": 1e999}',
        b'{"prompt": "\\ud800"}',
    ],
    ids=["empty", "cut", "list", "null", "string", "two", "utf8", "nan", "deep", "huge", "surrogate"],
)
async def test_body_that_is_no_json_object_is_refused_everywhere(api: Api, data: bytes) -> None:
    session, run = await api.session("hello"), await api.start("hello")
    for path in (
        "agent-runs",
        "agent-sessions",
        f"agent-sessions/{session}/messages",
        f"agent-runs/{run}/tool-results",
    ):
        check_error(await api.post(path, data=data), 400, "invalid_request")


@pytest.mark.requirement("wire.http.error_body")
async def test_unexpected_failure_has_one_shape_and_logged_details(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(app: App, request: Request, principal: Principal) -> Response:
        raise RuntimeError("the secret of the house")

    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    transport = AiohttpTransport()
    models = Config().catalog(transport=transport, scripted=ScriptedProvider(parse_scripts(b"{}")))
    store = MemoryStore()
    async with new_engine(store, models=models) as engine:
        routes = [Route("GET", "/broken", broken, access="public")]
        app = App(engine, store, WorkspaceCatalogs(models), routes)
        await app({"type": "http", "method": "GET", "path": "/broken", "headers": []}, receive, send)
    await transport.aclose()
    headers = {name.decode().title(): value.decode() for name, value in sent[0]["headers"]}
    body = check_error(Reply(sent[0]["status"], headers, sent[1]["body"]), 500, "internal_error")
    assert "secret of the house" not in str(body)
    assert "secret of the house" in caplog.text and body["requestId"] in caplog.text


async def test_a_body_over_the_limit_is_refused_without_being_read(api: Api) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rsplit(":", 1)[1]))
    head = (
        f"POST {api.base}/agent-runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        f"Content-Length: {33 * 1024 * 1024}\r\n\r\n"
    )
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.readuntil(b"}"), 120)
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 413 ")
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert body["code"] == "body_too_large" and body["limitBytes"] == 32 * 1024 * 1024


async def test_body_that_grows_over_the_limit_is_refused(api: Api) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rsplit(":", 1)[1]))
    head = (
        f"POST {api.base}/agent-runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    writer.write(head.encode())
    piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    for _ in range(33):
        writer.write(piece)
        await writer.drain()
    answer = await asyncio.wait_for(reader.readuntil(b"}"), 120)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.requirement("wire.http.no_redirects")
async def test_no_route_redirects_for_a_slash_more_or_less(api: Api) -> None:
    for route in ROUTES:
        if not route.path.startswith(("/api/v1/", "/healthz", "/readyz")):
            continue
        path = re.sub(r"\{\*?\w+\}", "x", route.path.replace("{slug}", api.slug))
        for variant in (path, path + "/", "/" + path, path.upper()):
            reply = await api.call(route.method, variant, headers={"X-Forwarded-Proto": "http"})
            assert not 300 <= reply.status < 400, (variant, reply.status)
            assert variant == path or reply.status == 404


@pytest.mark.requirement("wire.http.success_body")
async def test_cancel_and_delete_take_no_body_and_return_json(api: Api) -> None:
    run, session = await api.start("stuck"), await api.session("hello")
    for method, path in (
        ("POST", f"agent-runs/{run}/cancel"),
        ("DELETE", f"agent-sessions/{session}"),
        ("GET", f"agent-runs/{run}"),
        ("GET", f"agent-sessions/{session}"),
        ("GET", "models"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
    ):
        reply = await api.call(method, path)
        assert reply.status == 200 and isinstance(reply.json, dict), (path, reply)
        assert reply.headers["Content-Type"] == "application/json"


async def test_every_answer_has_a_request_id_and_errors_repeat_it(api: Api) -> None:
    reply = await api.get(f"agent-runs/{NO_SUCH}")
    assert reply.json["requestId"] == reply.headers["X-Request-Id"]
    again = await api.get(f"agent-runs/{NO_SUCH}")
    # Random from its beginning: two that follow each other do not tell how many there were.
    assert again.headers["X-Request-Id"][:12] != reply.headers["X-Request-Id"][:12]


async def test_answers_are_not_mistaken_for_undeclared_values(api: Api) -> None:
    run = await api.start("hello")
    for method, path in (
        ("GET", "models"),
        ("GET", "nowhere"),
        ("POST", "agent-runs"),
        ("GET", f"agent-runs/{run}"),
        ("GET", f"agent-runs/{run}/stream"),
        ("GET", "/openapi.json"),
        ("GET", "/api/oauth/sign-in"),
        ("POST", f"/api/mcp/{api.slug}"),
        ("GET", f"/api/a2a/{api.slug}/discovery"),
    ):
        reply = await api.call(method, path, {} if method == "POST" else None)
        assert reply.headers["X-Content-Type-Options"] == "nosniff", (path, reply.headers)
    check_error(await api.get("models", key=None), 401, "unauthorized")


async def test_health_needs_no_credential(api: Api) -> None:
    assert (await api.get("/healthz", key=None)).json == {"status": "ok"}
    assert (await api.get("/readyz", key=None)).json == {"status": "ready"}


async def test_head_answers_like_get_without_a_body(api: Api) -> None:
    run = await api.start("stuck")
    for path in ("/healthz", "models", f"agent-runs/{run}", f"agent-runs/{run}/stream"):
        reply = await api.call("HEAD", path)
        assert reply.status == 200 and reply.body == b"", path
    await api.cancel(run)


async def test_requests_that_are_no_http_do_not_disturb_the_server(api: Api, server: ServerProcess) -> None:
    for junk in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(junk)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 120)
        writer.close()
    assert (await api.get("/healthz")).status == 200


async def test_client_that_leaves_during_its_body_leaves_no_trace(api: Api, server: ServerProcess) -> None:
    before = len(server.log)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = (
        f"POST {api.base}/agent-runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        "Content-Length: 100\r\n\r\n"
    )
    writer.write(head.encode() + b'{"prompt":')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await api.get("/healthz")).status == 200
    assert not [line for line in list(server.log)[before:] if "ERROR" in line or "Traceback" in line]


NUL_DOORS: list[tuple[str, dict[str, Any], str]] = [
    ("agent-runs", {"prompt": "a\0"}, "prompt"),
    ("agent-runs", {"prompt": "a", "metadata": {"note": "a\0"}}, "metadata.note"),
    ("agent-runs", {"prompt": "a", "metadata": {"a\0": "b"}}, "metadata"),
    ("agent-runs", {"messages": [{"role": "user", "content": "a\0"}]}, "messages[0].content"),
    ("agent-runs", {"prompt": "a", "name": "a\0"}, "name"),
    (
        "agent-runs",
        {"prompt": "a", "tools": [{"kind": "local", "name": "x", "description": "\0"}]},
        "tools[0].description",
    ),
    ("agent-sessions", {"systemPrompt": "a\0"}, "systemPrompt"),
    ("agents", {"name": "Ann\0", "spec": {}}, "name"),
    ("tools", {"name": "t", "url": "https://example.com", "body": "\0"}, "body"),
    ("webhooks", {"url": "https://example.com/\0"}, "url"),
]


@pytest.mark.parametrize(("path", "body", "where"), NUL_DOORS)
async def test_u0000_is_refused_where_it_is(api: Api, path: str, body: dict[str, Any], where: str) -> None:
    error = check_error(await api.post(path, body), 400, "invalid_request")
    assert [one["path"] for one in error["issues"]] == [where]
    assert "U+0000, which cannot be stored" in error["message"]


async def test_u0000_is_refused_in_other_protocols(api: Api) -> None:
    assert (await api.post("agents", {"name": "Helper", "spec": {"modelId": "scripted:hello"}})).status == 201
    for path in (f"/api/mcp/{api.slug}", f"/api/a2a/{api.slug}/agents/helper"):
        call = {"jsonrpc": "2.0", "id": 1, "method": "any", "params": {"message": "\0"}}
        error = check_error(await api.post(path, call), 400, "invalid_request")
        assert "params.message: contains U+0000" in error["message"]
