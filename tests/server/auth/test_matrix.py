"""Every route with every kind of credential: what is let in, and which refusal the others get."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from weftline.cases import keys
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Request, Response
from weftline.server.router import Route, Router
from weftline.server.routes.every import ROUTES
from weftline.workspace.grants import ACCESS_S
from weftline.workspace.scopes import SCOPES

from .kit import Reply, World, check_error, named
from .worlds import new_world

pytestmark = pytest.mark.asyncio(loop_scope="module")

GUARDED = [route for route in ROUTES if route.access == "workspace"]
IN_WORKSPACE = [route for route in GUARDED if "{slug}" in route.path]
SCOPED = [route for route in GUARDED if route.scopes]
UNSCOPED = [route for route in GUARDED if not route.scopes]
NO_ID = "nothing_0123456789ab"


def path_of(route: Route, slug: str = "acme") -> str:
    return re.sub(r"\{\*?\w+\}", NO_ID, route.path.replace("{slug}", slug))


async def ask(world: World, route: Route, credential: str | None, *, slug: str = "acme") -> Reply:
    body = None if route.method in ("GET", "DELETE") else b"{}"
    return await world.call(route.method, path_of(route, slug), credential=credential, body=body)


def let_in(reply: Reply) -> bool:
    return reply.status == 200 and reply.json == {"letIn": True}


async def inside(app: App, request: Request, principal: Principal) -> Response:
    return Response(b'{"letIn":true}')


DOORS = Router(replace(route, handler=inside) if route in GUARDED else route for route in ROUTES)
"""The table of routes as it is, with nothing behind the doors: what is tried here is who gets through them."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[World]:
    """One for all: each test has credentials of its own, and leaves the workspaces' plans as they were."""
    async with new_world(shutil.copytree(empty_store, tmp_path_factory.mktemp("matrix") / "store")) as world:
        yield world


@pytest.fixture
def world(shared_world: World) -> World:
    shared_world.app.router = DOORS
    return shared_world


@pytest.mark.parametrize("route", GUARDED, ids=named)
@pytest.mark.requirement("wire.auth.unauthorized")
async def test_without_a_valid_credential_every_route_answers_401(world: World, route: Route) -> None:
    body = check_error(await ask(world, route, None), 401, "unauthorized")
    assert body["error"] == "Unauthorized"
    challenge = (await ask(world, route, None)).headers["www-authenticate"]
    assert challenge.startswith("Bearer scope=" if route.has_metadata else "Bearer")
    assert ("resource_metadata=" in challenge) == route.has_metadata

    identity, revoked = await world.new_key("acme")
    assert let_in(await ask(world, route, revoked)) == ("developer_api" in route.usages)
    await keys.remove(world.app.workspaces, identity)
    app = await world.client(redirect_uris=[], client_credentials=True, scopes=list(SCOPES))
    ended = (await app.token(grant_type="client_credentials")).json["access_token"]
    await app.post("revoke", token=ended)
    expired = (await app.token(grant_type="client_credentials")).json["access_token"]
    assert let_in(await ask(world, route, expired)) == bool(route.scopes)
    world.clock.pass_s(ACCESS_S)

    for invalid in ("weft_nobody", "mantyx_at_nobody", "mtx_live_nobody", "ü", revoked, ended, expired):
        reply = await ask(world, route, invalid)
        body = check_error(reply, 401, "unauthorized")
        assert body["error"] == "Invalid API key or OAuth access token"
        assert reply.headers["www-authenticate"].startswith('Bearer error="invalid_token"')
        assert ("resource_metadata" in reply.headers["www-authenticate"]) == route.has_metadata
        assert invalid not in reply.text


@pytest.mark.parametrize("route", IN_WORKSPACE, ids=named)
@pytest.mark.requirement("wire.auth.workspace_mismatch")
async def test_a_credential_of_another_workspace_is_told_its_own(world: World, route: Route) -> None:
    key = await world.key("globex")
    token = await world.own_token("globex", *SCOPES)
    for credential in (key, token):
        for slug in ("acme", "no-such-workspace"):
            body = check_error(await ask(world, route, credential, slug=slug), 404, "not_found")
            assert body["error"] == "Workspace path does not match this credential"
            assert body["correctSlug"] == "globex" and "globex" in body["hint"]


@pytest.mark.parametrize("route", GUARDED, ids=named)
@pytest.mark.requirement("wire.auth.forbidden")
async def test_keys_are_let_in_by_their_usage_and_workspaces_plan(world: World, route: Route) -> None:
    for usage in ("developer_api", "mcp", "a2a"):
        key = await world.key(usage=usage)
        reply = await ask(world, route, key)
        if usage in route.usages:
            assert let_in(reply), reply.body
            await world.switch("acme", "apiKeys", on=False)
            body = check_error(await ask(world, route, key), 403, "api_keys_plan")
            assert body["error"] == "Workspace API keys are not available on this plan."
            await world.switch("acme", "apiKeys", on=True)
            assert let_in(await ask(world, route, key))
        else:
            body = check_error(reply, 403, "forbidden")
            meant = "MCP" if "mcp" in route.usages else "A2A" if "a2a" in route.usages else "the Developer API"
            assert body["error"] == f"This API key is not for {meant}" and body["hint"]


@pytest.mark.parametrize("route", SCOPED, ids=named)
@pytest.mark.requirement("wire.auth.scopes", "wire.auth.forbidden")
async def test_tokens_need_the_routes_scopes_and_workspace_plan(world: World, route: Route) -> None:
    enough = await world.own_token("acme", *route.scopes)
    assert let_in(await ask(world, route, enough))
    for missing in route.scopes:
        token = await world.own_token("acme", *(scope for scope in SCOPES if scope != missing))
        reply = await ask(world, route, token)
        body = check_error(reply, 403, "insufficient_scope")
        assert body["error"] == "insufficient_scope"
        assert body["required"] == (route.scopes[0] if len(route.scopes) == 1 else list(route.scopes))
        scopes = " ".join(route.scopes)
        assert reply.headers["www-authenticate"].startswith(f'Bearer error="insufficient_scope", scope="{scopes}"')
    await world.switch("acme", "oauthApps", on=False)
    body = check_error(await ask(world, route, enough), 403, "oauth_apps_plan")
    assert body["error"] == "OAuth applications are not available on this plan."
    await world.switch("acme", "oauthApps", on=True)
    assert let_in(await ask(world, route, enough))


@pytest.mark.parametrize("route", UNSCOPED, ids=named)
async def test_route_that_no_scope_covers_takes_no_token_at_all(world: World, route: Route) -> None:
    check_error(await ask(world, route, await world.own_token("acme", *SCOPES)), 403, "forbidden")


async def test_a_route_with_several_scopes_names_all_of_them(world: World) -> None:
    route = Route("GET", "/api/both/{slug}", inside, scopes=("a2a:invoke", "agents:invoke"))
    world.app.router = Router([*ROUTES, route])
    reply = await ask(world, route, await world.own_token("acme", "a2a:invoke"))
    assert check_error(reply, 403, "insufficient_scope")["required"] == ["a2a:invoke", "agents:invoke"]
    assert reply.headers["www-authenticate"].endswith('scope="a2a:invoke agents:invoke"')
