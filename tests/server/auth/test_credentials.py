"""How a credential is sent, which check comes first, and what one workspace sees of another."""

from __future__ import annotations

from typing import Any

import pytest

from weftline.server.options import ServerOptions
from weftline.server.rate_limit import RateLimit

from .kit import Clock, Reply, World, check_error

MODELS = "/api/v1/workspaces/acme/models"
RUNS = "/api/v1/workspaces/acme/agent-runs"


@pytest.mark.requirement("wire.auth.credential_headers")
async def test_either_header_carries_either_kind_of_credential(world: World) -> None:
    key, token = await world.key(), await world.own_token("acme", "models:read")
    await world.operate("POST", "workspaces/acme/imported-keys", {"secret": "mtx_live_0123456789abcdef"})
    await world.operate("POST", "workspaces/acme/imported-keys", {"secret": "mantyx_0123456789abcdefgh"})
    for credential in (key, token, "mtx_live_0123456789abcdef", "mantyx_0123456789abcdefgh"):
        for headers in (
            {"Authorization": f"Bearer {credential}"},
            {"Authorization": f"bearer {credential}"},
            {"Authorization": f"BEARER  {credential} "},
            {"X-API-Key": credential},
            {"Authorization": "Basic Zm9vOmJhcg==", "X-API-Key": credential},
        ):
            assert (await world.call("GET", MODELS, headers=headers)).status == 200, headers


@pytest.mark.requirement("wire.auth.unauthorized")
@pytest.mark.parametrize("headers", [{"Authorization": "Bearer"}, {"Authorization": "Bearer  "}, {"X-API-Key": " "}])
async def test_an_empty_credential_is_none(world: World, headers: dict[str, str]) -> None:
    reply = await world.call("GET", MODELS, headers=headers)
    assert check_error(reply, 401, "unauthorized")["error"] == "Unauthorized"


@pytest.mark.parametrize("options", [ServerOptions(rate_limit_per_minute=1)])
@pytest.mark.requirement("wire.auth.check_order")
async def test_the_first_check_that_fails_answers(world: World) -> None:
    """Each step mends one fault of a request that has all of them."""

    async def ask(credential: str | None, slug: str = "globex") -> Reply:
        return await world.call("POST", f"/api/v1/workspaces/{slug}/agent-runs", credential=credential, body=b"no JSON")

    key = await world.key(usage="mcp")
    good, token = await world.key(), await world.own_token("acme", "runs:read")
    right = await world.own_token("acme", "runs:write")
    for feature in ("apiKeys", "oauthApps"):
        await world.switch("acme", feature, on=False)

    assert check_error(await ask(None), 401, "unauthorized")["error"] == "Unauthorized"
    check_error(await ask("weft_nobody"), 401, "unauthorized")
    check_error(await ask(key), 404, "not_found")
    check_error(await ask(key, "acme"), 403, "forbidden")
    check_error(await ask(good, "acme"), 403, "api_keys_plan")
    check_error(await ask(token), 404, "not_found")
    check_error(await ask(token, "acme"), 403, "oauth_apps_plan")
    for feature in ("apiKeys", "oauthApps"):
        await world.switch("acme", feature, on=True)
    check_error(await ask(token, "acme"), 403, "insufficient_scope")
    check_error(await ask(token, "acme"), 403, "insufficient_scope")
    for credential in (good, right):
        check_error(await ask(credential, "acme"), 400, "invalid_request")
        check_error(await ask(credential, "acme"), 429, "rate_limited")


@pytest.mark.parametrize("options", [ServerOptions(rate_limit_per_minute=3)])
@pytest.mark.requirement("wire.auth.rate_limit")
async def test_a_credential_over_its_limit_waits_and_another_does_not(world: World) -> None:
    key, other = await world.key(), await world.key()
    for _ in range(3):
        assert (await world.call("GET", MODELS, credential=key)).status == 200
        world.clock.pass_s(10)
    reply = await world.call("GET", MODELS, credential=key)
    body = check_error(reply, 429, "rate_limited")
    assert body["error"] == "rate_limited"
    wait_s = int(reply.headers["retry-after"])
    assert 0 < wait_s <= 61
    assert (await world.call("GET", MODELS, credential=other)).status == 200

    world.clock.pass_s(wait_s - 1.5)
    assert (await world.call("GET", MODELS, credential=key)).status == 429
    world.clock.pass_s(1.5)
    assert (await world.call("GET", MODELS, credential=key)).status == 200
    assert (await world.call("GET", MODELS, credential=key)).status == 429


@pytest.mark.parametrize("options", [ServerOptions(rate_limit_per_minute=1)])
@pytest.mark.requirement("wire.auth.rate_limit_exempt")
async def test_streams_tool_results_and_cancels_are_never_limited(world: World) -> None:
    key = await world.key()
    run = (await world.call("POST", RUNS, credential=key, body={"modelId": "scripted:hello", "prompt": "hi"})).json[
        "runId"
    ]
    for _ in range(3):
        assert (await world.call("GET", f"{RUNS}/{run}", credential=key)).status == 429
        answer: dict[str, Any] = {"toolUseId": "none", "result": "x"}
        reply = await world.call("POST", f"{RUNS}/{run}/tool-results", credential=key, body=answer)
        assert reply.status in (404, 409)
        assert (await world.call("POST", f"{RUNS}/{run}/cancel", credential=key)).status == 200
        assert (await world.call("GET", f"{RUNS}/{run}/stream", credential=key)).status == 200


async def test_refreshing_a_token_gives_no_second_allowance(world: World) -> None:
    world.app.auth.limit = RateLimit(1)
    client = await world.client(redirect_uris=[], client_credentials=True, scopes=["models:read"])
    tokens = [(await client.token(grant_type="client_credentials")).json["access_token"] for _ in range(2)]
    statuses = [(await world.call("GET", MODELS, credential=token)).status for token in tokens]
    assert statuses == [200, 429]


def test_no_minute_sees_more_requests_than_allowed() -> None:
    clock, limit = Clock(), RateLimit(50)
    taken: list[int] = []
    for step in range(2000):
        clock.pass_s(0.01 + (step * 7919 % 100) / 100)
        if limit.take("a", now_us=clock.us) == 0:
            taken.append(clock.us)
    assert len(taken) > 500
    assert all(later - earlier > 59_000_000 for earlier, later in zip(taken, taken[50:], strict=False)), (
        "51 requests within a minute"
    )


def test_a_clock_that_was_set_back_locks_nobody_out() -> None:
    clock, limit = Clock(), RateLimit(1)
    assert limit.take("a", now_us=clock.us) == 0
    clock.pass_s(-3600)
    assert limit.take("a", now_us=clock.us) == 0


def test_no_limit_is_no_limit() -> None:
    limit = RateLimit(0)
    assert not any(limit.take("a", now_us=0) for _ in range(100_000))


@pytest.mark.requirement("wire.auth.isolation")
async def test_foreign_resources_look_nonexistent(world: World) -> None:
    key, other = await world.key("acme"), await world.key("globex")
    spec = {"modelId": "scripted:hello"}
    run = (await world.call("POST", RUNS, credential=key, body={**spec, "prompt": "hi"})).json["runId"]
    session = (await world.call("POST", "/api/v1/workspaces/acme/agent-sessions", credential=key, body=spec)).json[
        "sessionId"
    ]
    answer = {"toolUseId": "t", "result": "x"}
    for method, path, body in (
        ("GET", "agent-runs/{}", None),
        ("GET", "agent-runs/{}/stream", None),
        ("POST", "agent-runs/{}/tool-results", answer),
        ("POST", "agent-runs/{}/cancel", None),
        ("GET", "agent-sessions/{}", None),
        ("POST", "agent-sessions/{}/messages", {"prompt": "hi"}),
        ("DELETE", "agent-sessions/{}", None),
    ):
        mine = run if "runs" in path else session
        unknown = mine[:-1] + ("0" if mine[-1] != "0" else "1")
        bodies: list[dict[str, Any]] = []
        for identity in (mine, unknown, mine[:4] + "ffff" + mine[-12:], "nonsense"):
            url = f"/api/v1/workspaces/globex/{path.format(identity)}"
            found = check_error(await world.call(method, url, credential=other, body=body), 404, "not_found")
            found.pop("requestId", None)
            bodies.append(found)
        assert all(found == bodies[0] for found in bodies), path
    assert (await world.call("GET", f"{RUNS}/{run}", credential=key)).status == 200
