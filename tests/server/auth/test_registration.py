"""Clients that register themselves, what they may ask for, and what bounds them (RFC 7591, 8707, 9207, 9728)."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest

from weftline.config import Config
from weftline.errors import WeftlineError
from weftline.server.cors import Cors
from weftline.server.options import ServerOptions, server_options
from weftline.workspace import registration

from .kit import VERIFIER, Browser, Client, Reply, World, check_error, check_oauth_error

LOOPBACK = "http://127.0.0.1:33418/callback"
MCP = "http://localhost/api/mcp/acme"
PATH = "/api/mcp/acme"


async def register(world: World, *, address: str = "192.0.2.1", **fields: Any) -> Reply:
    body = {"client_name": "Host", "redirect_uris": [LOOPBACK], "token_endpoint_auth_method": "none", **fields}
    return await world.call("POST", "/api/oauth/register", body=body, address=address)


async def registered(world: World, **fields: Any) -> Client:
    reply = await register(world, **fields)
    assert reply.status == 201, reply.body
    return Client(world, reply.json["client_id"], reply.json.get("client_secret", ""))


async def tokens(world: World, browser: Browser, client: Client, **changes: str | None) -> dict[str, Any]:
    asked = {"redirect_uri": LOOPBACK, "scope": None, "resource": MCP, **changes}
    code = (await browser.decide(await browser.ask(client, **asked), "approve")).redirect["code"]
    reply = await client.exchange(code, redirect_uri=LOOPBACK)
    assert reply.status == 200, reply.body
    return reply.json


async def test_a_client_without_a_secret_registers_asks_and_connects(world: World, browser: Browser) -> None:
    reply = await register(world, scope="agents:write mcp:connect", application_type="native")
    assert reply.status == 201 and reply.headers["cache-control"] == "no-store"
    made = reply.json
    assert made["redirect_uris"] == [LOOPBACK] and made["token_endpoint_auth_method"] == "none"
    assert made["scope"] == "mcp:connect" and "client_secret" not in made
    client = Client(world, made["client_id"], "")
    page = await browser.ask(client, redirect_uri=LOOPBACK, scope=None, resource=MCP)
    assert "connect over MCP" in page.text and "registered itself" in page.text and "127.0.0.1" in page.text
    back = (await browser.decide(page, "approve")).redirect
    assert back["iss"] == "http://localhost"
    given = (await client.exchange(back["code"], redirect_uri=LOOPBACK, resource=MCP)).json
    assert given["scope"] == "mcp:connect"
    let_in = await world.call("DELETE", PATH, credential=given["access_token"])
    assert let_in.status not in (401, 403), let_in.body


async def test_a_client_with_a_secret_must_show_it(world: World, browser: Browser) -> None:
    reply = await register(world, token_endpoint_auth_method="client_secret_post")
    client = Client(world, reply.json["client_id"], reply.json["client_secret"])
    assert reply.json["client_secret_expires_at"] == 0
    page = await browser.ask(client, redirect_uri=LOOPBACK, scope=None, resource=MCP)
    code = (await browser.decide(page, "approve")).redirect["code"]
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": LOOPBACK, "code_verifier": VERIFIER}
    without = await world.call("POST", "/api/oauth/token", form={**form, "client_id": client.id})
    check_oauth_error(without, "invalid_client", status=401)
    given = await client.exchange(code, redirect_uri=LOOPBACK)
    assert given.status == 200
    assert (await client.introspect(given.json["access_token"]))["aud"] == MCP


async def test_host_whose_registration_is_gone_is_told_to_register_again(world: World, browser: Browser) -> None:
    client = Client(world, "mantyx_oa_nobody", "")
    for visitor in (browser, Browser(world)):
        reply = await visitor.get(client.query(redirect_uri=LOOPBACK, scope=None, resource=MCP))
        # FastMCP registers again after a 400 at this address, and at this one alone.
        assert reply.status == 400 and "not registered" in reply.text
        assert reply.headers["content-type"].startswith("text/html")
    check_oauth_error(await client.refresh("x"), "invalid_client", status=401)


async def test_a_client_that_says_nothing_about_its_secret_gets_one(world: World) -> None:
    reply = await register(world, token_endpoint_auth_method=None)
    assert reply.json["token_endpoint_auth_method"] == "client_secret_basic" and reply.json["client_secret"]


async def test_token_for_mcp_server_is_good_for_nothing_else(world: World, browser: Browser) -> None:
    await world.user("bob@example.com", "acme", "globex")
    client = await world.client(scopes=["mcp:connect", "runs:read", "mantyx.identity:read"])
    page = await browser.ask(client, scope="mcp:connect runs:read mantyx.identity:read", resource=MCP)
    code = (await browser.decide(page, "approve")).redirect["code"]
    given = (await client.exchange(code)).json["access_token"]
    for method, path in (
        ("GET", "/api/v1/workspaces/acme/agent-runs"),
        ("GET", "/api/oauth/userinfo"),
        ("POST", "/api/mcp/globex"),
    ):
        reply = await world.call(method, path, credential=given)
        check_error(reply, 401, "unauthorized")
        assert 'error="invalid_token"' in reply.headers["www-authenticate"]
    assert (await world.call("DELETE", PATH, credential=given)).status not in (401, 403)


FOREIGN = (
    "http://evil.example/api/mcp/acme",
    "http://localhost/api/v1/workspaces/acme",
    "http://localhost/api/mcp/acme/more",
    "http://localhost/api/mcp/ACME",
    "http://localhost/api/mcp/acme?x=1",
    "http://u:p@localhost/api/mcp/acme",
    "https://localhost/api/mcp/acme",
    "ftp://localhost/api/mcp/acme",
    "nonsense",
)


async def test_a_resource_that_is_not_ours_is_refused(world: World, browser: Browser) -> None:
    client = await registered(world)
    for resource in FOREIGN:
        reply = await browser.get(client.query(redirect_uri=LOOPBACK, scope=None, resource=resource))
        assert reply.status == 400 and list(reply.json["details"]) == ["resource"], resource
        check_oauth_error(await client.exchange("x", resource=resource), "invalid_target")


async def test_the_resource_of_a_code_and_of_a_grant_stays(world: World, browser: Browser) -> None:
    await world.operate("PUT", "users/ann@example.com/workspaces/globex")
    client = await registered(world)
    other = MCP.replace("acme", "globex")
    page = await browser.ask(client, redirect_uri=LOOPBACK, scope=None, resource=MCP)
    assert "<option" not in page.text
    code = (await browser.decide(page, "approve")).redirect["code"]
    check_oauth_error(await client.exchange(code, redirect_uri=LOOPBACK, resource=other), "invalid_target")
    given = (await client.exchange(code, redirect_uri=LOOPBACK)).json
    check_oauth_error(await client.refresh(given["refresh_token"], resource=other), "invalid_target")
    more = (await client.refresh(given["refresh_token"])).json["access_token"]
    check_error(await world.call("POST", "/api/mcp/globex", credential=more), 401, "unauthorized")


async def test_user_who_is_not_in_workspace_cannot_open_it(world: World, browser: Browser) -> None:
    client = await registered(world)
    await world.key("globex")
    asked = client.query(redirect_uri=LOOPBACK, scope=None, resource=MCP.replace("acme", "globex"))
    assert (await browser.get(asked)).status == 403


async def test_public_refresh_tokens_rotate_and_reuse_ends_the_grant(world: World, browser: Browser) -> None:
    client = await registered(world)
    first = await tokens(world, browser, client)
    second = (await client.refresh(first["refresh_token"])).json
    assert second["refresh_token"] != first["refresh_token"]
    third = (await client.refresh(second["refresh_token"])).json
    check_oauth_error(await client.refresh(second["refresh_token"]), "invalid_grant")
    check_oauth_error(await client.refresh(third["refresh_token"]), "invalid_grant")
    check_error(await world.call("POST", PATH, credential=third["access_token"]), 401, "unauthorized")


async def test_a_client_without_a_secret_may_revoke_and_not_introspect(world: World, browser: Browser) -> None:
    client = await registered(world)
    given = (await tokens(world, browser, client))["access_token"]
    check_oauth_error(
        await world.call("POST", "/api/oauth/introspect", form={"client_id": client.id, "token": given}),
        "invalid_client",
        status=401,
    )
    revoked = await world.call("POST", "/api/oauth/revoke", form={"client_id": client.id, "token": given})
    assert revoked.status == 200
    check_error(await world.call("POST", PATH, credential=given), 401, "unauthorized")
    check_oauth_error(await client.token(grant_type="client_credentials"), "unsupported_grant_type")


BAD: tuple[tuple[str, Any, str], ...] = (
    ("redirect_uris", None, "invalid_redirect_uri"),
    ("redirect_uris", [], "invalid_redirect_uri"),
    ("redirect_uris", ["http://app.example/cb"], "invalid_redirect_uri"),
    ("redirect_uris", ["com.example.app:/cb"], "invalid_redirect_uri"),
    ("redirect_uris", ["javascript:alert(1)"], "invalid_redirect_uri"),
    ("redirect_uris", ["http://127.0.0.1.evil.example/"], "invalid_redirect_uri"),
    ("redirect_uris", ["https://app.example/" + "x" * 3000], "invalid_redirect_uri"),
    ("redirect_uris", [f"https://app.example/{n}" for n in range(11)], "invalid_redirect_uri"),
    ("redirect_uris", "https://app.example/cb", "invalid_client_metadata"),
    ("token_endpoint_auth_method", "private_key_jwt", "invalid_client_metadata"),
    ("grant_types", ["client_credentials"], "invalid_client_metadata"),
    ("response_types", ["token"], "invalid_client_metadata"),
    ("client_name", "x" * 300, "invalid_client_metadata"),
    ("client_name", 7, "invalid_client_metadata"),
    ("client_name", "x" * 100_000, "invalid_client_metadata"),
)


async def test_bad_registration_is_refused_in_words_of_rfc(world: World) -> None:
    for number, (field, value, error) in enumerate(BAD):
        reply = await register(world, address=f"192.0.2.{number}", **{field: value})
        check_oauth_error(reply, error)
    for number, body in enumerate((b"", b"nonsense", b"[]", b"\xff", b"7", b"{" * 10_000, b'{"a":' + b"[" * 10_000)):
        address = f"198.51.100.{number}"
        reply = await world.call("POST", "/api/oauth/register", body=body, address=address)
        check_oauth_error(reply, "invalid_client_metadata")
    assert await world.operate("GET", "registered-apps") == {"apps": []}


@pytest.mark.parametrize("options", [ServerOptions(oauth_redirect_schemes=frozenset({"cursor"}))])
async def test_schemes_that_the_operator_lists_are_allowed(world: World) -> None:
    assert (await register(world, redirect_uris=["cursor://anysphere/oauth"])).status == 201


@pytest.mark.parametrize("options", [ServerOptions(oauth_registration=False)])
async def test_registration_can_be_switched_off(world: World) -> None:
    body = check_error(await register(world), 403, "forbidden")
    assert "oauth_registration" in body["hint"]
    metadata = (await world.call("GET", "/.well-known/oauth-authorization-server")).json
    assert "registration_endpoint" not in metadata


async def test_sender_registers_only_so_many_a_minute(world: World) -> None:
    replies = [await register(world) for _ in range(21)]
    assert [reply.status for reply in replies] == [201] * 20 + [429]
    check_error(replies[-1], 429, "rate_limited")
    assert (await register(world, address="192.0.2.2")).status == 201
    world.clock.pass_s(int(replies[-1].headers["retry-after"]))
    assert (await register(world)).status == 201


async def test_client_that_nobody_used_expires_and_used_one_stays(world: World, browser: Browser) -> None:
    unused, used = await registered(world), await registered(world)
    await tokens(world, browser, used)
    world.clock.pass_s(registration.UNUSED_S + 1)
    await registered(world)
    assert [
        app["clientId"] in (unused.id, used.id) for app in (await world.operate("GET", "registered-apps"))["apps"]
    ] == [
        True,
        False,
    ]
    assert (await browser.get(unused.query(redirect_uri=LOOPBACK))).status == 401


async def test_strangers_fill_table_to_bound_and_oldest_makes_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "MAX_UNUSED", 3)
    first, *_ = [await registered(world) for _ in range(3)]
    refused = await register(world)
    check_error(refused, 503, "unavailable")
    assert int(refused.headers["retry-after"]) > 0
    world.clock.pass_s(1000)
    await registered(world)
    known = [app["clientId"] for app in (await world.operate("GET", "registered-apps"))["apps"]]
    assert len(known) == 3 and first.id not in known


async def test_the_401_names_metadata_that_exists_and_leads_on(world: World) -> None:
    reply = await world.call("POST", PATH, body={})
    metadata = "http://localhost/.well-known/oauth-protected-resource/api/mcp/acme"
    assert reply.headers["www-authenticate"] == f'Bearer scope="mcp:connect", resource_metadata="{metadata}"'
    told = (await world.call("GET", metadata.removeprefix("http://localhost"))).json
    assert told["resource"] == MCP and told["scopes_supported"] == ["mcp:connect"]
    server = told["authorization_servers"][0]
    assert server == "http://localhost"
    found = (await world.call("GET", "/.well-known/oauth-authorization-server")).json
    assert found["issuer"] == server and found["registration_endpoint"] == f"{server}/api/oauth/register"
    assert found["authorization_response_iss_parameter_supported"] is True
    assert "none" in found["token_endpoint_auth_methods_supported"]
    whole = (await world.call("GET", "/.well-known/oauth-protected-resource")).json
    assert whole["resource"] == server


async def test_a_slug_that_cannot_be_is_not_repeated(world: World) -> None:
    reply = await world.call("POST", '/api/mcp/x"y', body={})
    assert reply.status == 401 and reply.headers["www-authenticate"] == "Bearer"
    check_error(await world.call("GET", "/.well-known/oauth-protected-resource/api/mcp/X"), 404, "not_found")


@pytest.mark.parametrize("options", [ServerOptions(url="http://127.0.0.1:8080", local=True)])
async def test_caller_by_another_name_of_this_machine_is_told(world: World) -> None:
    for host in ("127.0.0.1:8080", "localhost:8080", "[::1]:8080"):
        told = (
            await world.call("GET", "/.well-known/oauth-protected-resource/api/mcp/acme", headers={"host": host})
        ).json
        assert told["resource"] == f"http://{host}/api/mcp/acme"
        assert told["authorization_servers"] == [f"http://{host}"]
    for host in ("localhost", "localhost:9", "evil.example:8080", "x@localhost:8080", ""):
        told = (
            await world.call("GET", "/.well-known/oauth-protected-resource/api/mcp/acme", headers={"host": host})
        ).json
        assert told["resource"] == "http://127.0.0.1:8080/api/mcp/acme"


BEHIND = ServerOptions(url="http://127.0.0.1:8080", local=True, public_url="https://agents.example.com/weft")


@pytest.mark.parametrize("options", [BEHIND])
@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "agents.example.com", "10.1.2.3"])
async def test_server_with_a_public_url_names_no_other(world: World, host: str) -> None:
    headers, key = {"host": host}, await world.key()
    base = "https://agents.example.com/weft"
    found = (await world.call("GET", "/.well-known/oauth-authorization-server", headers=headers)).json
    assert found["issuer"] == base and found["token_endpoint"] == f"{base}/api/oauth/token"
    # A client that takes the path for one of the issuer's finds it here, below the path that the proxy takes away.
    assert (await world.call("GET", "/.well-known/openid-configuration", headers=headers)).json == found
    refused = await world.call("POST", PATH, headers=headers, body={})
    assert (
        f'resource_metadata="{base}/.well-known/oauth-protected-resource{PATH}"' in refused.headers["www-authenticate"]
    )
    told = (await world.call("GET", f"/.well-known/oauth-protected-resource{PATH}", headers=headers)).json
    assert (told["resource"], told["authorization_servers"]) == (f"{base}{PATH}", [base])
    assert (await world.call("GET", "/", headers=headers)).json["openapi"] == "/weft/openapi.json"
    body = {"prompt": "hi", "modelId": "scripted:ask"}
    run = await world.call("POST", "/api/v1/workspaces/acme/agent-runs", credential=key, headers=headers, body=body)
    path = f"/weft/api/v1/workspaces/acme/agent-runs/{run.json['runId']}"
    assert (run.json["streamUrl"], run.headers["location"]) == (f"{path}/stream", path)


LOCAL = ServerOptions(url="http://127.0.0.1:8080", local=True)
PUBLIC = ServerOptions(url="http://localhost:8080", public_url="https://weft.example.org")
LISTED = ServerOptions(url="http://localhost:8080", allowed_hosts=frozenset({"weft.internal"}))
OPEN = ServerOptions(url="http://localhost:8080")
"""Listens on every address, and was not told its name."""
PAGES = ServerOptions(url="http://localhost:8080", cors=Cors(frozenset({"https://app.example"})))

Pairs: TypeAlias = list[tuple[str, str | None]]
HOSTS: list[tuple[ServerOptions, Pairs, Pairs]] = [
    (
        LOCAL,
        [
            ("127.0.0.1:8080", None),
            ("localhost:8080", "http://localhost:8080"),
            ("localhost:8080", "http://localhost:3000"),
            ("[::1]:8080", None),
        ],
        [
            ("evil.example", None),
            ("evil.example:8080", "http://evil.example:8080"),
            ("localhost.evil.example:8080", None),
            ("localhost:8080", "http://evil.example"),
            ("localhost:8080", "http://localhost.evil.example"),
            ("localhost:8080", "null"),
            ("", None),
        ],
    ),
    (
        PUBLIC,
        [("weft.example.org", "https://weft.example.org"), ("10.1.2.3:8080", None)],
        [
            ("evil.example", None),
            ("weft.example.org", "http://weft.example.org"),
            ("weft.example.org", "http://localhost:3000"),
        ],
    ),
    (LISTED, [("weft.internal:8080", None)], [("evil.example", None)]),
    (OPEN, [("weft:8080", None)], [("evil.example", "http://evil.example")]),
    (PAGES, [("weft:8080", "https://app.example")], [("weft:8080", "https://app.example.evil.example")]),
]


@pytest.mark.parametrize(("options", "good", "bad"), HOSTS, ids=["local", "public", "listed", "open", "cors"])
async def test_host_and_origin_of_mcp_requests_are_checked(world: World, good: Pairs, bad: Pairs) -> None:
    key = await world.key()
    for host, origin in (*good, *bad):
        headers = {"host": host} if origin is None else {"host": host, "origin": origin}
        reply = await world.call("DELETE", PATH, credential=key, headers=headers)
        assert (reply.status == 403) == ((host, origin) in bad), (host, origin, reply.body)


@pytest.mark.parametrize(
    ("name", "value"),
    [("oauth_registration", "yes"), ("allowed_hosts", "weft.example"), ("allowed_hosts", ["http://weft.example"])],
)
def test_a_bad_setting_is_named(name: str, value: object) -> None:
    with pytest.raises(WeftlineError, match=f"server.{name}"):
        server_options(Config(server={name: value}))
