"""What handlers read of a request is what their routes declare, and so what the OpenAPI page says."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.json import schema

from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.declared import OF_EVERY_REQUEST, Body, Undeclared
from weftline.server.http import Request, Response
from weftline.server.openapi import body_type, document, shown_path
from weftline.server.router import EventStream, Route, Router
from weftline.server.routes.every import ROUTES

from ..auth.kit import World, named
from ..auth.worlds import new_world
from .test_openapi import BODIES, FILE, MAKERS

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKSPACE = "/api/v1/workspaces/acme"
PAGE = document(ROUTES)["paths"]


def _text(raw: bytes) -> str:
    return raw.decode()


BODY = Body(dict, _text)
JSON = {"content-type": "application/json"}


def parameters(route: Route) -> set[tuple[str, str]]:
    """The query parameters and headers that the page has for a route."""
    listed = PAGE[shown_path(route)][route.method.lower()].get("parameters", [])
    return {(one["in"], one["name"].lower()) for one in listed if one["in"] != "path"}


WITH_PARAMETERS = [route for route in ROUTES if parameters(route)]
"""For the others it is enough that reading anything fails."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[World]:
    async with new_world(tmp_path_factory.mktemp("declared") / "store") as world:
        yield world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def key(world: World) -> str:
    return await world.key()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def known(world: World, key: str) -> dict[str, str]:
    """Something for every id that a path can have; the run has ended."""
    made: dict[str, str] = {"slug": "acme", "workspaceSlug": "acme", "agentSlug": "known", "awaitId": "await_0_0"}
    made |= {"turn": "last", "effectId": "eff_0", "key": "k", "name": "k", "userId": "ann", "path": "k"}
    for name, (path, body, field) in MAKERS.items():
        reply = await world.call("POST", f"{WORKSPACE}/{path}", credential=key, body=body)
        made[name] = reply.json[field]
    file = f"{WORKSPACE}/threads/{made['threadId']}/fs/k"
    await world.call("POST", file, credential=key, body=FILE, headers=JSON)
    run = {"modelId": "scripted:hello", "prompt": "hi"}
    reply = await world.call("POST", f"{WORKSPACE}/agent-runs", credential=key, body=run)
    made["runId"] = reply.json["runId"]
    await world.call("GET", f"{WORKSPACE}/agent-runs/{made['runId']}/stream", credential=key)
    said = await world.call(
        "POST", f"{WORKSPACE}/agent-sessions/{made['threadId']}/messages", credential=key, body={"prompt": "hi"}
    )
    await world.call("GET", f"{WORKSPACE}/agent-runs/{said.json['runId']}/stream", credential=key)
    listed = await world.call("GET", f"{WORKSPACE}/threads/{made['threadId']}/messages", credential=key)
    made["messageId"] = listed.json["messages"][0]["id"]
    return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """What requests are asked for, beyond what every request may have."""
    found = set[tuple[str, str]]()

    def recorded(method: str, place: str) -> None:
        original = getattr(Request, method)

        def read(request: Request, name: Any) -> Any:
            if name not in OF_EVERY_REQUEST:
                found.add((place, (name.decode() if isinstance(name, bytes) else name).lower()))
            return original(request, name)

        monkeypatch.setattr(Request, method, read)

    for method, place in (("query_value", "query"), ("query_values", "query"), ("header", "header")):
        recorded(method, place)
    return found


@pytest.mark.parametrize("route", WITH_PARAMETERS, ids=named)
async def test_a_handler_reads_every_parameter_that_the_page_has(
    route: Route, world: World, key: str, known: dict[str, str], reads: set[tuple[str, str]]
) -> None:
    body: Any = None
    if route.body is not None:
        # Whether unknown fields are refused is asked only if there are some.
        body = {**BODIES.get(body_type(route), {}), **({"unknwon": 1} if route.warns else {})}
    follows = EventStream in (route.returns, *getattr(route.returns, "__args__", ()))
    accepts = {"accept": "text/event-stream"} if follows else JSON
    path = re.sub(r"\{(\w+)\}", lambda found: known[found[1]], shown_path(route))
    reply = await world.call(route.method, path, credential=key, body=body, headers=accepts)
    assert reply.status != 500, reply.body
    assert reads == parameters(route)


LISTED = [
    (route, one.name, value) for route in ROUTES for one in route.query for value in schema(one.type).get("enum", ())
]


@pytest.mark.parametrize(
    ("route", "name", "value"), LISTED, ids=lambda one: named(one) if isinstance(one, Route) else one
)
async def test_every_value_that_page_lists_is_accepted_and_no_other(
    route: Route, name: str, value: str, world: World, key: str, known: dict[str, str]
) -> None:
    path = re.sub(r"\{(\w+)\}", lambda found: known[found[1]], shown_path(route))
    assert (await world.call("GET", f"{path}?{name}={value}", credential=key)).status == 200
    refused = await world.call("GET", f"{path}?{name}={value}s", credential=key)
    assert refused.status == 400 and refused.json["issues"][0]["path"] == name and value in refused.json["message"]


async def test_a_handler_cannot_read_what_its_route_does_not_declare(world: World) -> None:
    undeclared: list[str] = []

    async def handle(app: App, request: Request, principal: Principal) -> Response:
        for read in (
            lambda: request.query_value("limit"),
            lambda: request.query_values("limit"),
            lambda: request.header(b"a2a-version"),
            lambda: request.header_lines(b"a2a-version"),
            lambda: request.require_body(BODY),
        ):
            with pytest.raises(Undeclared) as refused:
                read()
            undeclared.append(str(refused.value))
        with pytest.raises(Undeclared):
            await request.body()
        return Response(b"{}")

    router, world.app.router = world.app.router, Router([Route("GET", "/nothing", handle, access="public")])
    try:
        assert (await world.call("GET", "/nothing?limit=1", headers={"a2a-version": "1.0"})).status == 200
    finally:
        world.app.router = router
    assert len(undeclared) == 5


async def test_a_body_is_read_by_the_routes_own_description(world: World) -> None:
    other = Body(dict, _text)

    async def handle(app: App, request: Request, principal: Principal) -> Response:
        with pytest.raises(Undeclared):
            await request.parse(b"", other)
        return Response((await request.read(BODY)).encode())

    route = Route("POST", "/something", handle, access="public", body=BODY)
    router, world.app.router = world.app.router, Router([route])
    try:
        assert (await world.call("POST", "/something", body={"a": 1})).json == {"a": 1}
    finally:
        world.app.router = router
