"""What apps do themselves: exchange, refresh, act for themselves, revoke, introspect."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from urllib.parse import quote_plus

import pytest

from weftline.workspace.grants import challenge_of
from weftline.workspace.scopes import SCOPES as CATALOG

from .kit import CALLBACK, SCOPES, VERIFIER, Browser, Client, World, check_error, check_oauth_error

USERINFO = "/api/oauth/userinfo"


async def works(world: World, token: str) -> bool:
    reply = await world.call("GET", USERINFO, credential=token)
    assert reply.status in (200, 401), reply.body
    return reply.status == 200


async def code_for(client: Client, browser: Browser) -> str:
    return (await browser.approve(client)).redirect["code"]


@pytest.mark.requirement("wire.oauth.token_response", "wire.oauth.code_grant")
async def test_a_code_becomes_tokens_that_last_an_hour(world: World, browser: Browser) -> None:
    client = await world.client()
    reply = await client.exchange(await code_for(client, browser))
    assert reply.status == 200 and reply.headers["cache-control"] == "no-store"
    body = reply.json
    assert set(body) == {"access_token", "token_type", "expires_in", "refresh_token", "scope"}
    assert body["access_token"].startswith("mantyx_at_") and body["refresh_token"].startswith("mantyx_rt_")
    assert body["token_type"] == "Bearer" and b'"expires_in":3600' in reply.body and body["scope"] == SCOPES
    world.clock.pass_s(3599)
    assert await works(world, body["access_token"])
    world.clock.pass_s(1)
    assert not await works(world, body["access_token"])


@pytest.mark.requirement("wire.oauth.code_grant")
@pytest.mark.parametrize(
    "change",
    [
        {"code": "mantyx_ac_nothing"},
        {"redirect_uri": "https://app.example/other"},
        {"redirect_uri": f"{CALLBACK}/"},
        {"code_verifier": "w" * 43},
        {"code_verifier": "v" * 42},
        {"code_verifier": "v" * 129},
        {"code_verifier": "v" * 42 + "ü"},
    ],
    ids=repr,
)
async def test_a_code_that_does_not_fit_is_refused(world: World, browser: Browser, change: dict[str, str]) -> None:
    client = await world.client()
    code = await code_for(client, browser)
    check_oauth_error(await client.exchange(code, **change), "invalid_grant")


@pytest.mark.requirement("wire.oauth.code_grant")
async def test_code_is_for_one_client_one_use_and_ten_minutes(world: World, browser: Browser) -> None:
    client, other = await world.client(), await world.client()
    code = await code_for(client, browser)
    check_oauth_error(await other.exchange(code), "invalid_grant")
    replies = await asyncio.gather(*(client.exchange(code) for _ in range(5)))
    assert sorted(reply.status for reply in replies) == [200, 400, 400, 400, 400]
    late = await code_for(client, browser)
    world.clock.pass_s(600)
    check_oauth_error(await client.exchange(late), "invalid_grant")


async def test_second_use_of_code_ends_what_first_gave(world: World, browser: Browser) -> None:
    client = await world.client()
    code = await code_for(client, browser)
    first = (await client.exchange(code)).json
    assert await works(world, first["access_token"])
    check_oauth_error(await client.exchange(code), "invalid_grant")
    assert not await works(world, first["access_token"])
    check_oauth_error(await client.refresh(first["refresh_token"]), "invalid_grant")


@pytest.mark.requirement("wire.oauth.code_grant")
async def test_verifiers_of_43_to_128_characters_are_taken(world: World, browser: Browser) -> None:
    client = await world.client()
    for verifier in (VERIFIER, "a-Z.0_9~" * 16):
        page = await browser.ask(client, code_challenge=challenge_of(verifier))
        code = (await browser.decide(page, "approve")).redirect["code"]
        assert (await client.exchange(code, code_verifier=verifier)).status == 200


@pytest.mark.requirement("wire.oauth.refresh", "wire.oauth.token_response")
async def test_a_refresh_token_stays_what_it_is(world: World, browser: Browser) -> None:
    client = await world.client()
    first = await client.granted(browser)
    replies = await asyncio.gather(*(client.refresh(first["refresh_token"]) for _ in range(5)))
    assert [reply.status for reply in replies] == [200] * 5
    assert {reply.json["refresh_token"] for reply in replies} == {first["refresh_token"]}
    issued = {reply.json["access_token"] for reply in replies} | {first["access_token"]}
    assert len(issued) == 6 and all([await works(world, token) for token in issued])
    world.clock.pass_s(3600)
    again = (await client.refresh(first["refresh_token"])).json
    assert await works(world, again["access_token"]) and not await works(world, first["access_token"])


@pytest.mark.requirement("wire.oauth.refresh")
async def test_a_refresh_may_only_narrow(world: World, browser: Browser) -> None:
    client = await world.client(scopes=[*SCOPES.split(), "models:read"])
    refresh = (await client.granted(browser))["refresh_token"]
    narrow = (await client.refresh(refresh, scope="mantyx.identity:read")).json
    assert narrow["scope"] == "mantyx.identity:read"
    check_oauth_error(await client.refresh(refresh, scope="runs:read models:read"), "invalid_scope")
    assert (await client.refresh(refresh)).json["scope"] == SCOPES
    models = await world.call("GET", "/api/v1/workspaces/acme/agent-runs/x", credential=narrow["access_token"])
    check_error(models, 403, "insufficient_scope")


@pytest.mark.requirement("wire.oauth.client_credentials")
async def test_app_that_may_acts_for_itself_in_its_owners_workspace(world: World) -> None:
    client = await world.client(
        "globex", client_credentials=True, redirect_uris=[], scopes=["runs:read", "models:read"]
    )
    body = (await client.token(grant_type="client_credentials")).json
    assert "refresh_token" not in body and body["scope"] == "runs:read models:read"
    reply = await world.call("GET", "/api/v1/workspaces/globex/models", credential=body["access_token"])
    assert reply.status == 200
    narrow = (await client.token(grant_type="client_credentials", scope="runs:read")).json
    assert narrow["scope"] == "runs:read"
    reply = await world.call("GET", "/api/v1/workspaces/globex/models", credential=narrow["access_token"])
    check_error(reply, 403, "insufficient_scope")
    check_oauth_error(await client.token(grant_type="client_credentials", scope="runs:write"), "invalid_scope")
    for other in (await world.client(), await world.client(visibility="public")):
        check_oauth_error(await other.token(grant_type="client_credentials"), "unsupported_grant_type")


@pytest.mark.requirement("wire.oauth.client_auth")
@pytest.mark.parametrize("endpoint", ["token", "revoke", "introspect"])
async def test_a_client_proves_itself_in_the_body_or_by_basic(world: World, endpoint: str) -> None:
    client = await world.client(client_credentials=True)
    form = {"grant_type": "client_credentials", "token": "mantyx_at_x"}
    path = f"/api/oauth/{endpoint}"

    def basic(client_id: str, secret: str) -> dict[str, str]:
        text = f"{quote_plus(client_id)}:{quote_plus(secret)}"
        return {"authorization": f"Basic {b64encode(text.encode()).decode()}"}

    assert (await client.post(endpoint, **form)).status == 200
    assert (await world.call("POST", path, form=form, headers=basic(client.id, client.secret))).status == 200
    both = {**form, "client_id": client.id}
    assert (await world.call("POST", path, form=both, headers=basic(client.id, client.secret))).status == 200

    other = await world.client()
    for headers, fields in (
        ({}, form),
        ({}, {**form, "client_id": client.id}),
        ({}, {**form, "client_id": client.id, "client_secret": other.secret}),
        ({}, {**form, "client_id": client.id, "client_secret": client.secret[:-1]}),
        ({}, {**form, "client_id": "mantyx_oa_nobody", "client_secret": client.secret}),
        (basic(client.id, "wrong"), form),
        ({"authorization": "Basic ???"}, form),
        ({"authorization": f"Bearer {client.secret}"}, form),
    ):
        reply = await world.call("POST", path, form=fields, headers=headers)
        check_oauth_error(reply, "invalid_client", status=401)
        assert reply.headers["www-authenticate"].startswith("Basic")

    for headers, fields in (
        (basic(client.id, client.secret), {**both, "client_secret": client.secret}),
        (basic(client.id, client.secret), {**form, "client_id": other.id}),
    ):
        check_oauth_error(await world.call("POST", path, form=fields, headers=headers), "invalid_request")


@pytest.mark.requirement("wire.oauth.client_auth")
async def test_request_errors_have_their_oauth_names(world: World) -> None:
    client = await world.client(client_credentials=True)
    check_oauth_error(await client.token(), "invalid_request")
    check_oauth_error(await client.token(grant_type="password"), "unsupported_grant_type")
    check_oauth_error(await client.token(grant_type="authorization_code"), "invalid_request")
    check_oauth_error(await client.token(grant_type="refresh_token"), "invalid_request")
    check_oauth_error(await client.refresh("mantyx_rt_nothing"), "invalid_grant")
    check_oauth_error(await client.post("revoke"), "invalid_request")
    check_oauth_error(await client.post("introspect"), "invalid_request")
    credentials = f"client_id={client.id}&client_secret={client.secret}"
    form = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    for headers, body in (
        ({"content-type": "application/json"}, b'{"grant_type":"client_credentials"}'),
        ({}, f"grant_type=client_credentials&{credentials}".encode()),
        (form, f"grant_type=client_credentials&grant_type=refresh_token&{credentials}".encode()),
        (form, b"a=" + b"x" * 70_000),
        (form, b"\xff\xfe"),
        (form, b"a=%ff"),
        (form, b"&".join(b"a%d=1" % number for number in range(100))),
    ):
        reply = await world.call("POST", "/api/oauth/token", headers=headers, body=body)
        check_oauth_error(reply, "invalid_request")
    reply = await world.call(
        "POST", "/api/oauth/token", headers=form, body=f"grant_type=client_credentials&{credentials}".encode()
    )
    assert reply.status == 200


@pytest.mark.requirement("wire.oauth.revoke")
async def test_revoking_an_access_token_ends_that_one_alone(world: World, browser: Browser) -> None:
    client = await world.client()
    first = await client.granted(browser)
    second = (await client.refresh(first["refresh_token"])).json
    assert await works(world, first["access_token"])
    reply = await client.post("revoke", token=first["access_token"])
    assert reply.status == 200 and reply.json == {}
    assert not await works(world, first["access_token"]) and await works(world, second["access_token"])
    assert (await client.refresh(first["refresh_token"])).status == 200


@pytest.mark.requirement("wire.oauth.revoke", "wire.oauth.refresh")
@pytest.mark.parametrize("way", ["refresh token", "grant", "app", "command"])
async def test_revoking_a_grant_ends_everything_of_it_at_once(world: World, browser: Browser, way: str) -> None:
    client, other = await world.client(), await world.client()
    first = await client.granted(browser)
    second = (await client.refresh(first["refresh_token"])).json
    untouched = await other.granted(browser)
    live = (first["access_token"], second["access_token"])
    assert all([await works(world, token) for token in live])
    grants = (await browser.get("/api/oauth/grants")).json["grants"]
    assert [grant["app"]["clientId"] for grant in grants] == [client.id, other.id]
    assert grants[0]["scopes"] == SCOPES.split() and grants[0]["workspace"] == "acme"
    if way == "refresh token":
        assert (await client.post("revoke", token=first["refresh_token"])).json == {}
    elif way == "grant":
        reply = await browser.send("DELETE", f"/api/oauth/grants/{grants[0]['id']}")
        assert reply.json == {"ok": True}
    elif way == "app":
        key = await world.key()
        await world.call("DELETE", f"/api/v1/workspaces/acme/oauth-apps/{client.id}", credential=key)
    else:
        await world.operate("DELETE", f"grants/{grants[0]['id']}")
    assert not any([await works(world, token) for token in live])
    refused = await client.refresh(first["refresh_token"])
    if way == "app":
        check_oauth_error(refused, "invalid_client", status=401)
    else:
        check_oauth_error(refused, "invalid_grant")
    assert await works(world, untouched["access_token"])
    assert len((await browser.get("/api/oauth/grants")).json["grants"]) == 1


@pytest.mark.requirement("wire.oauth.revoke")
async def test_revoking_foreign_tokens_changes_and_reveals_nothing(world: World, browser: Browser) -> None:
    client, other = await world.client(), await world.client()
    tokens = await client.granted(browser)
    for token in (tokens["access_token"], tokens["refresh_token"], "mantyx_at_x", "mantyx_rt_x", "weft_x", "ü"):
        reply = await other.post("revoke", token=token)
        assert reply.status == 200 and reply.json == {}
    assert await works(world, tokens["access_token"])
    assert (await client.refresh(tokens["refresh_token"])).status == 200


async def test_a_grant_is_ended_by_its_own_user_only(world: World, browser: Browser) -> None:
    client = await world.client()
    tokens = await client.granted(browser)
    grant = (await browser.get("/api/oauth/grants")).json["grants"][0]["id"]
    await world.user("bob@example.com", "acme")
    bob = Browser(world)
    await bob.sign_in("bob@example.com")
    assert (await bob.get("/api/oauth/grants")).json == {"grants": []}
    check_error(await bob.send("DELETE", f"/api/oauth/grants/{grant}"), 404, "not_found")
    check_error(await Browser(world).send("DELETE", f"/api/oauth/grants/{grant}"), 401, "unauthorized")
    assert await works(world, tokens["access_token"])


@pytest.mark.requirement("wire.oauth.introspect")
async def test_introspection_tells_an_app_about_its_own_live_tokens(world: World, browser: Browser) -> None:
    client, other = await world.client(client_credentials=True), await world.client()
    tokens = await client.granted(browser)
    me = (await world.call("GET", USERINFO, credential=tokens["access_token"])).json
    told = await client.introspect(tokens["access_token"])
    assert told == {
        "active": True,
        "scope": SCOPES,
        "client_id": client.id,
        "token_type": "Bearer",
        "exp": world.clock.us // 1_000_000 + 3600,
        "iat": world.clock.us // 1_000_000,
        "sub": me["sub"],
        "username": "ann@example.com",
    }
    told = await client.introspect(tokens["refresh_token"])
    assert told["active"] is True and told["sub"] == me["sub"]
    own = (await client.token(grant_type="client_credentials")).json["access_token"]
    assert (await client.introspect(own))["sub"] == client.id
    for token in (tokens["access_token"], tokens["refresh_token"], "mantyx_at_nothing", "nothing"):
        assert await other.introspect(token) == {"active": False}
    key = await world.key()
    assert await client.introspect(key) == {"active": False}
    await client.post("revoke", token=own)
    assert await client.introspect(own) == {"active": False}
    world.clock.pass_s(3600)
    assert await client.introspect(tokens["access_token"]) == {"active": False}


@pytest.mark.requirement("wire.oauth.discovery")
async def test_userinfo_tells_who_one_is(world: World, browser: Browser) -> None:
    client = await world.client()
    tokens = await client.granted(browser)
    reply = await world.call("GET", USERINFO, credential=tokens["access_token"])
    user = await world.operate("GET", "users/ann@example.com")
    workspace = reply.json["workspace"]
    assert reply.json == {"sub": user["id"], "email": "ann@example.com", "workspace": workspace}
    assert set(workspace) == {"id", "slug", "name"} and workspace["slug"] == "acme"
    narrow = (await client.refresh(tokens["refresh_token"], scope="runs:read")).json["access_token"]
    check_error(await world.call("GET", USERINFO, credential=narrow), 403, "insufficient_scope")


@pytest.mark.requirement("wire.oauth.discovery")
async def test_the_metadata_names_the_endpoints(world: World) -> None:
    told = (await world.call("GET", "/.well-known/oauth-authorization-server")).json
    assert told["issuer"] == "http://localhost"
    for name in ("authorization", "token", "revocation", "introspection"):
        path = told[f"{name}_endpoint"].removeprefix(told["issuer"])
        assert any(route.path == path for route in world.app.router.routes), path
    assert told["code_challenge_methods_supported"] == ["S256"]
    assert told["scopes_supported"] == list(CATALOG) and told["response_types_supported"] == ["code"]
    assert set(told["token_endpoint_auth_methods_supported"]) == {"client_secret_basic", "client_secret_post", "none"}


async def test_the_issuer_is_not_what_the_host_header_says(world: World) -> None:
    usual = (await world.call("GET", "/.well-known/oauth-authorization-server")).json
    for name in ("host", "x-forwarded-host", "forwarded"):
        headers = {name: "evil.example"}
        told = (await world.call("GET", "/.well-known/oauth-authorization-server", headers=headers)).json
        assert told == usual


@pytest.mark.requirement("wire.auth.scopes")
async def test_a_token_runs_an_agent_with_the_runs_scopes_alone(world: World, browser: Browser) -> None:
    client = await world.client()
    token = (await client.granted(browser))["access_token"]
    runs = "/api/v1/workspaces/acme/agent-runs"
    spec = {"modelId": "scripted:hello", "prompt": "hi"}
    made = await world.call("POST", runs, credential=token, body=spec)
    assert made.status == 202, made.body
    stream = await world.call("GET", f"{runs}/{made.json['runId']}/stream", credential=token)
    assert stream.status == 200 and b"event: result" in stream.body
