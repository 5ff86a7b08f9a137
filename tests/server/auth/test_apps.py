"""Registering OAuth apps: what they may be and where they may send people."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from weftline.config import Config
from weftline.errors import WeftlineError
from weftline.server.options import ServerOptions, server_options
from weftline.workspace import apps
from weftline.workspace.apps import redirect_uri
from weftline.workspace.scopes import OUR_NAMES, SCOPES

from .kit import CALLBACK, Browser, World, check_error

APPS = "/api/v1/workspaces/acme/oauth-apps"
NOTES: dict[str, Any] = {"name": "Notes", "redirectUris": [CALLBACK], "allowedScopes": ["runs:read"]}


@pytest.mark.requirement("wire.oauth.app")
async def test_app_gets_id_and_secret_that_no_read_returns(world: World) -> None:
    key = await world.key()
    made = await world.call("POST", APPS, credential=key, body={**NOTES, "description": "Takes notes."})
    assert made.status == 201, made.body
    app = made.json
    assert app["clientId"].startswith("mantyx_oa_") and app["clientSecret"].startswith("mantyx_oas_")
    shown = {name: value for name, value in app.items() if name != "clientSecret"}
    assert shown["visibility"] == "private" and shown["allowsClientCredentials"] is False
    assert (await world.call("GET", f"{APPS}/{app['clientId']}", credential=key)).json == shown
    assert (await world.call("GET", APPS, credential=key)).json == {"apps": [shown]}
    assert await apps.show_app(world.app.workspaces, client_id=app["clientId"])
    other = await world.key("globex")
    path = f"/api/v1/workspaces/globex/oauth-apps/{app['clientId']}"
    for method in ("GET", "DELETE"):
        check_error(await world.call(method, path, credential=other), 404, "not_found")
    assert (await world.call("DELETE", f"{APPS}/{app['clientId']}", credential=key)).json == {"ok": True}
    check_error(await world.call("GET", f"{APPS}/{app['clientId']}", credential=key), 404, "not_found")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 300}, "name"),
        ({"allowedScopes": ["runs:read", "runs:everything"]}, "allowedScopes"),
        ({"allowedScopes": []}, "allowedScopes"),
        ({"visibility": "secret"}, "visibility"),
        ({"visibility": "public", "allowsClientCredentials": True}, "allowsClientCredentials"),
        ({"redirectUris": []}, "redirectUris"),
        ({"redirectUris": ["http://app.example/callback"]}, "redirectUris"),
        ({"logo": "http://app.example/logo.png"}, "logo"),
    ],
    ids=repr,
)
@pytest.mark.requirement("wire.oauth.app")
async def test_an_app_that_may_not_be_is_refused(world: World, change: dict[str, Any], field: str) -> None:
    reply = await world.call("POST", APPS, credential=await world.key(), body={**NOTES, **change})
    assert check_error(reply, 400, "invalid_request")["message"].startswith(f"{field}: ")


async def test_a_workspace_without_the_feature_registers_no_app(world: World) -> None:
    key = await world.key()
    await world.switch("acme", "oauthApps", on=False)
    check_error(await world.call("POST", APPS, credential=key, body=NOTES), 403, "oauth_apps_plan")


@pytest.mark.parametrize(
    "uri",
    [
        "https://app.example/callback",
        "https://app.example",
        "https://app.example:8443/cb?x=1",
        "http://localhost/cb",
        "http://localhost:3000/cb",
        "http://127.0.0.1:53123/",
        "http://[::1]:8080/cb",
        "com.example.notes:/cb",
        "com.example.notes://cb",
    ],
)
@pytest.mark.requirement("wire.oauth.redirect_uri")
def test_redirect_uri_is_https_loopback_or_of_custom_scheme(uri: str) -> None:
    assert redirect_uri(uri) == uri
    assert redirect_uri(f"{uri}#part") == uri


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "http://app.example/cb",
        "http://localhost.example/cb",
        "http://127.0.0.1.example/cb",
        "http://localhost@evil.example/cb",
        "https://user:secret@app.example/cb",
        "https://",
        "https:///cb",
        "https://app.example:port/cb",
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "notes://cb",
        "intent://cb",
        "ms-msdt:/id",
        "search-ms:query=x",
        "blob:https://app.example/1",
        ".example:/cb",
        "com.:/cb",
        "com.example.notes:",
        "//app.example/cb",
        "/cb",
        "app.example/cb",
        "https://app.example/a b",
        "https://app.example/\r\nSet-Cookie: a=b",
        "https://app.example/<script>",
        "notes:",
    ],
)
@pytest.mark.requirement("wire.oauth.redirect_uri")
def test_any_other_redirect_uri_is_refused(uri: str) -> None:
    assert redirect_uri(uri) is None


@pytest.mark.requirement("wire.oauth.redirect_uri")
async def test_authorize_sends_nobody_to_an_address_that_is_not_registered(world: World, browser: Browser) -> None:
    client = await world.client(redirect_uris=[CALLBACK, "com.example.notes://cb/"])
    for uri in (
        f"{CALLBACK}/",
        f"{CALLBACK}?x=1",
        "https://app.example",
        "https://evil.example",
        "com.example.notes://cb",
    ):
        reply = await browser.get(client.query(redirect_uri=uri))
        assert reply.status == 400 and "location" not in reply.headers
        assert reply.json["details"]["redirect_uri"]
    await browser.ask(client, redirect_uri=f"{CALLBACK}#part")
    await browser.ask(client, redirect_uri="com.example.notes://cb/")


@pytest.mark.parametrize("options", [ServerOptions(oauth_redirect_schemes=frozenset({"notes"}))])
async def test_an_operator_lists_schemes_of_known_apps(world: World) -> None:
    key = await world.key()
    for uri, status in (("notes://cb", 201), ("other://cb", 400), ("javascript:alert(1)", 400)):
        reply = await world.call("POST", APPS, credential=key, body={**NOTES, "redirectUris": [uri]})
        assert reply.status == status, reply.body


@pytest.mark.parametrize("scheme", ["javascript", "data", "https", "Notes", "x", "no tes", "intent"])
def test_a_scheme_that_is_no_apps_cannot_be_listed(scheme: str) -> None:
    with pytest.raises(WeftlineError) as refused:
        server_options(Config(server={"oauth_redirect_schemes": [scheme]}))
    assert refused.value.details["key"] == "server.oauth_redirect_schemes"


@pytest.mark.parametrize(
    ("registered", "asked", "sent"),
    [
        ("http://127.0.0.1/cb", "http://127.0.0.1:51004/cb", True),
        ("http://127.0.0.1:3000/cb", "http://127.0.0.1:51004/cb", True),
        ("http://127.0.0.1:3000/cb", "http://127.0.0.1/cb", True),
        ("http://[::1]/cb", "http://[::1]:51004/cb", True),
        ("http://localhost/cb?x=1", "http://localhost:9/cb?x=1", True),
        ("http://127.0.0.1/cb", "http://127.0.0.1:51004/other", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:51004/cb?x=1", False),
        ("http://127.0.0.1/cb", "http://localhost:51004/cb", False),
        ("http://127.0.0.1/cb", "https://127.0.0.1:51004/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:51004@evil.example/cb", False),
        ("http://127.0.0.1/cb", "http://evil@127.0.0.1:51004/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:99999/cb", False),
        ("https://app.example/cb", "https://app.example:8443/cb", False),
    ],
)
@pytest.mark.requirement("wire.oauth.redirect_uri")
async def test_only_on_this_machine_does_any_port_do(
    world: World, browser: Browser, registered: str, asked: str, sent: bool
) -> None:
    client = await world.client(redirect_uris=[registered])
    page = await browser.get(client.query(redirect_uri=asked))
    assert page.status == (200 if sent else 400), page.text
    if sent:
        decided = await browser.decide(page, "approve")
        assert decided.headers["location"].startswith(asked)
        # The code is exchanged with the address that it was sent to, and no other.
        code = decided.redirect["code"]
        assert (await client.exchange(code, redirect_uri=asked)).status == 200
        page = await browser.get(client.query(redirect_uri=asked))
        code = (await browser.decide(page, "approve")).redirect["code"]
        assert (await client.exchange(code, redirect_uri=f"{asked}x")).status == 400


def test_scopes_of_docs_are_those_of_consent_page(project_root: Path) -> None:
    text = (project_root / "docs" / "auth.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+:\w+)`(?: \(or `([\w.]+:\w+)`\))? \| (.+) \|$", text, re.MULTILINE)
    assert {foreign or name: about for name, foreign, about in rows} == SCOPES
    assert {name: foreign for name, foreign, _ in rows if foreign} == OUR_NAMES
