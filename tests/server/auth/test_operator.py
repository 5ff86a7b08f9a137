"""The operator: whoever is let in to the store's own socket. What comes over TCP never is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from weftline.server.http import PEER
from weftline.server.operators import EVERY, PATHS
from weftline.server.router import Route
from weftline.server.routes.every import ROUTES
from weftline.server.routes.operator import ROUTES as OPERATORS

from .kit import Reply, World, check_error, named

PAGES = ("GET", "/api/v1/workspaces/acme/agents")
RUNS = f"/api/v1/workspaces/{EVERY}/agent-runs"
NO_ID = "nothing_0123456789ab"
BY_ID = ("{runId}", "{keyId}", "{clientId}")


async def by_operator(world: World, method: str, path: str, *, body: Any = None, **options: Any) -> Reply:
    return await world.call(method, path, body=body, scope={PEER: "root"}, **options)


@pytest.mark.parametrize("route", OPERATORS, ids=named)
async def test_routes_of_the_operator_do_not_exist_for_others(world: World, route: Route) -> None:
    path = re.sub(r"\{\*?\w+\}", "acme", route.path)
    unknown = await world.call(route.method, f"{PATHS}nothing")
    for credential in (None, await world.key()):
        reply = await world.call(route.method, path, credential=credential, body={})
        assert reply.status == 404 and reply.json["message"] == unknown.json["message"]
    with_key = await by_operator(world, route.method, path, body={}, credential=await world.key())
    assert with_key.status == 404


async def test_the_operator_needs_no_key_for_the_api(world: World) -> None:
    check_error(await world.call(*PAGES), 401, "unauthorized")
    await by_operator(world, "PUT", f"{PATHS}workspaces/acme")
    assert (await by_operator(world, *PAGES)).json == {"agents": [], "nextCursor": None}
    listed = await by_operator(world, "GET", "/api/v1/workspaces")
    assert listed.json == {"workspaces": [{"slug": "acme"}]}
    missing = await by_operator(world, "GET", "/api/v1/workspaces/nowhere/agents")
    assert missing.status == 404 and missing.json["message"] == "There is no workspace 'nowhere'."


async def test_a_credential_on_the_socket_is_never_more_than_that(world: World) -> None:
    key = await world.key("other")
    await world.key("acme")
    assert (await by_operator(world, *PAGES, credential=key)).status == 404
    check_error(await by_operator(world, *PAGES, headers={"authorization": "Basic cm9vdDo="}), 401, "unauthorized")
    check_error(await by_operator(world, *PAGES, headers={"x-api-key": "weft_nobody"}), 401, "unauthorized")


@pytest.mark.parametrize("header", ["forwarded", "x-forwarded-for", "x-forwarded-host", "via", "origin"])
async def test_forwarded_requests_to_the_socket_are_refused(world: World, header: str) -> None:
    await world.key("acme")
    check_error(await by_operator(world, *PAGES, headers={header: "http://localhost"}), 403, "forbidden")


async def test_the_operator_is_refused_by_other_protocols(world: World) -> None:
    await world.key("acme")
    for path in ("/api/mcp/acme", "/api/a2a/acme/agents/x"):
        check_error(await by_operator(world, "POST", path, body={}), 401, "unauthorized")
    check_error(await by_operator(world, "GET", "/api/oauth/userinfo"), 401, "unauthorized")


@pytest.mark.parametrize(
    "route", [one for one in ROUTES if "{slug}" in one.path and one.path[:8] == "/api/v1/"], ids=named
)
async def test_no_workspace_is_named_by_a_dash(world: World, route: Route) -> None:
    """Lists that have all workspaces at once say so; everything else needs one, or an id that says which."""
    path = re.sub(r"\{\*?\w+\}", NO_ID, route.path.replace("{slug}", EVERY))
    reply = await by_operator(world, route.method, path, body={})
    assert reply.status == (200 if route.every_workspace else 404)
    if not any(name in route.path for name in BY_ID) and not route.every_workspace:
        assert reply.json["message"] == "There is no workspace '-'."
    refused = await world.call(route.method, path, body={}, credential=await world.key())
    if "developer_api" in route.usages:
        assert refused.json["correctSlug"] == "acme"


async def test_a_key_is_found_by_its_id_in_any_workspace(world: World) -> None:
    await by_operator(world, "PUT", f"{PATHS}workspaces/acme")
    made = (await by_operator(world, "POST", "/api/v1/workspaces/acme/api-keys", body={})).json
    await world.key("other")
    path = f"/api/v1/workspaces/{EVERY}/api-keys/{made['id']}"
    assert (await by_operator(world, "GET", path)).json["workspace"] == "acme"
    assert (await by_operator(world, "DELETE", path)).json == {"ok": True}
    assert (await by_operator(world, "GET", path)).json["revokedAt"] is not None
    keys = "/api/v1/workspaces/acme/api-keys"
    assert (await by_operator(world, "GET", keys)).json["keys"] == []
    assert [key["id"] for key in (await by_operator(world, "GET", f"{keys}?revoked=true")).json["keys"]] == [made["id"]]


async def test_the_operator_is_not_limited(world: World) -> None:
    await world.key("acme")
    world.app.auth.limit.per_minute = 1
    for _ in range(3):
        assert (await by_operator(world, *PAGES)).status == 200


async def test_the_list_of_runs_may_have_all_workspaces(world: World) -> None:
    for slug in ("acme", "other"):
        key = await world.key(slug)
        asked = {"prompt": "Hello.", "modelId": "scripted:hello"}
        made = await world.call("POST", f"/api/v1/workspaces/{slug}/agent-runs", credential=key, body=asked)
        assert made.status == 202, made.body
    listed = (await by_operator(world, "GET", RUNS)).json["runs"]
    assert len(listed) == 2
    for run in listed:
        shown = await by_operator(world, "GET", f"{RUNS}/{run['id']}")
        assert shown.json["id"] == run["id"]
    elsewhere = await by_operator(world, "GET", f"/api/v1/workspaces/acme/agent-runs/{listed[0]['id']}")
    assert elsewhere.status == 404 and "There is no run" in elsewhere.json["message"]
