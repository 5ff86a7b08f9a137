"""The browser's way to a code: authorize, sign in, decide."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import urljoin

import pytest

from weftline.server.options import ServerOptions

from .kit import CALLBACK, PASSWORD, Browser, World, check_error

DECIDE = "/api/oauth/authorize/decide"


@pytest.mark.requirement("wire.oauth.authorize")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("client_id", None),
        ("redirect_uri", None),
        ("response_type", None),
        ("response_type", "token"),
        ("scope", None),
        ("scope", " "),
        ("scope", "runs:read agents:write"),
        ("scope", "no:scope"),
        ("code_challenge", None),
        ("code_challenge", "short"),
        ("code_challenge_method", None),
        ("code_challenge_method", "plain"),
        ("state", "x" * 3000),
    ],
)
async def test_a_bad_authorize_query_is_told_and_not_redirected(
    world: World, browser: Browser, field: str, value: str | None
) -> None:
    client = await world.client()
    for visitor in (browser, Browser(world)):
        reply = await visitor.get(client.query(**{field: value}))
        assert reply.status == 400 and reply.headers["content-type"] == "application/json"
        assert reply.json["error"] == "Invalid authorize request" and list(reply.json["details"]) == [field]


@pytest.mark.requirement("wire.oauth.authorize")
async def test_an_unknown_client_is_answered_401(world: World, browser: Browser) -> None:
    client = await world.client()
    reply = await browser.get(client.query(client_id="mantyx_oa_nobody"))
    assert reply.status == 401 and reply.json["error"] == "invalid_client"


async def test_a_parameter_that_comes_twice_is_refused(world: World, browser: Browser) -> None:
    client = await world.client()
    reply = await browser.get(f"{client.query()}&state=other")
    assert reply.status == 400 and reply.json["details"] == {"query": "a parameter occurs more than once"}


@pytest.mark.requirement("wire.oauth.decide")
async def test_visitor_signs_in_is_asked_and_goes_back_with_code(world: World) -> None:
    client = await world.client(description="Keeps <b>notes</b>.")
    await world.user("ann@example.com", "acme")
    visitor = Browser(world)
    page = await visitor.get(client.query())
    assert page.status == 200 and 'type="password"' in page.text and "approve" not in page.text
    signed = await visitor.sign_in(page=client.query())
    assert (
        signed.status == 303
        and urljoin("/weft/api/oauth/sign-in", signed.headers["location"]) == f"/weft{client.query()}"
    )
    cookie = next(value for name, value in signed.headers.items() if name == "set-cookie")
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Path" not in cookie

    page = await visitor.ask(client)
    assert "Notes" in page.text and "ann@example.com" in page.text and "app.example" in page.text
    assert "Keeps &lt;b&gt;notes&lt;/b&gt;." in page.text
    back = await visitor.decide(page, "approve")
    assert back.headers["location"].startswith(f"{CALLBACK}?")
    assert set(back.redirect) == {"code", "state", "iss"} and back.redirect["state"] == "st/ate &1"
    assert (await client.exchange(back.redirect["code"])).status == 200


@pytest.mark.requirement("wire.oauth.decide")
async def test_a_user_who_says_no_goes_back_with_access_denied(world: World, browser: Browser) -> None:
    client = await world.client(redirect_uris=[f"{CALLBACK}?tenant=1"])
    page = await browser.ask(client, redirect_uri=f"{CALLBACK}?tenant=1")
    back = await browser.decide(page, "deny")
    assert back.redirect == {"tenant": "1", "error": "access_denied", "state": "st/ate &1", "iss": "http://localhost"}
    page = await browser.ask(client, redirect_uri=f"{CALLBACK}?tenant=1", state=None)
    assert "state" not in (await browser.decide(page, "deny")).redirect


@pytest.mark.requirement("wire.oauth.decide")
async def test_nobody_decides_without_having_signed_in(world: World, browser: Browser) -> None:
    client = await world.client()
    page = await browser.ask(client)
    stranger = Browser(world)
    check_error(await stranger.decide(page, "approve"), 401, "unauthorized")
    await browser.post("/api/oauth/sign-out")
    check_error(await browser.decide(page, "approve"), 401, "unauthorized")


async def test_consent_is_for_one_session_one_use_and_ten_minutes(world: World, browser: Browser) -> None:
    client = await world.client()
    await world.user("bob@example.com", "acme")
    bob = Browser(world)
    await bob.sign_in("bob@example.com")
    page = await browser.ask(client)
    for reply, fault in (
        (await bob.decide(page, "approve"), "belongs to another session"),
        (await browser.post(DECIDE, token=page.token[:-4] + "AAAA", decision="approve"), "is not from a page"),
        (await browser.post(DECIDE, decision="approve"), "is not from a page"),
    ):
        assert reply.status == 400 and reply.json["details"]["token"].startswith(fault)
    assert (await browser.decide(page, "maybe")).json["details"] == {"decision": "must be approve or deny"}
    assert (await browser.decide(page, "approve")).status == 302
    for decision in ("approve", "deny"):
        assert (await browser.decide(page, decision)).json["details"] == {"token": "was already used"}
    late = await browser.ask(client)
    world.clock.pass_s(601)
    assert (await browser.decide(late, "approve")).json["details"]["token"].startswith("has expired")


async def test_a_form_of_another_site_changes_nothing(world: World, browser: Browser) -> None:
    client = await world.client()
    page = await browser.ask(client)
    for site in ("cross-site", "same-site"):
        form = {"token": page.token, "decision": "approve"}
        check_error(await browser.send("POST", DECIDE, form=form, headers={"sec-fetch-site": site}), 403, "forbidden")
    for origin in ("https://evil.example", "null", "http://weft.example:81"):
        reply = await browser.post(DECIDE, origin=origin, token=page.token, decision="approve")
        check_error(reply, 403, "forbidden")
        check_error(await browser.post("/api/oauth/sign-in", origin=origin, email="a", password="b"), 403, "forbidden")
    assert (await browser.decide(page, "approve")).status == 302


@pytest.mark.requirement("wire.oauth.decide")
async def test_a_public_app_lets_the_user_choose_among_their_workspaces(world: World) -> None:
    client = await world.client("vendor", visibility="public", scopes=["mantyx.identity:read"])
    await world.key("elsewhere")
    await world.user("ann@example.com", "acme", "globex", "closed")
    await world.switch("closed", "oauthApps", on=False)
    browser = Browser(world)
    await browser.sign_in()
    page = await browser.ask(client, scope="mantyx.identity:read")
    assert '<option value="acme">' in page.text and '<option value="globex">' in page.text
    assert "vendor" not in page.text and "elsewhere" not in page.text and "closed" not in page.text
    for slug in ("vendor", "elsewhere", "closed", ""):
        reply = await browser.decide(page, "approve", workspace=slug)
        assert reply.status == 400 and "workspace" in reply.json["details"]
    tokens = await client.granted(browser, scope="mantyx.identity:read", workspace="globex")
    who = await world.call("GET", "/api/oauth/userinfo", credential=tokens["access_token"])
    assert who.json["workspace"]["slug"] == "globex"


@pytest.mark.requirement("wire.oauth.decide")
async def test_a_private_app_is_for_members_of_its_own_workspace(world: World) -> None:
    client = await world.client("acme")
    await world.user("eve@example.com", "globex")
    eve = Browser(world)
    await eve.sign_in("eve@example.com")
    page = await eve.get(client.query())
    assert page.status == 403 and "approve" not in page.text
    await world.operate("PUT", "users/eve@example.com/workspaces/acme")
    tokens = await client.granted(eve)
    await world.operate("DELETE", "users/eve@example.com/workspaces/acme")
    check_error(await world.call("GET", "/api/oauth/userinfo", credential=tokens["access_token"]), 401, "unauthorized")


@pytest.mark.requirement("wire.oauth.decide")
async def test_user_may_restrict_app_that_uses_agents_to_some(world: World, browser: Browser) -> None:
    client = await world.client(scopes=["runs:write", "runs:read"])
    page = await browser.ask(client, scope="runs:write")
    assert 'name="agents"' in page.text
    for wrong in ("a/b", "ok no!"):
        assert "agents" in (await browser.decide(page, "approve", agents=wrong)).json["details"]
    code = (await browser.decide(page, "approve", agents="agent_1, agent_2 agent_1")).redirect["code"]
    token = (await client.exchange(code)).json["access_token"]
    body = {"modelId": "scripted:hello", "prompt": "hi", "agentId": "agent_3"}
    check_error(
        await world.call("POST", "/api/v1/workspaces/acme/agent-runs", credential=token, body=body), 403, "forbidden"
    )
    grants = (await browser.get("/api/oauth/grants")).json["grants"]
    assert grants[0]["agentIds"] == ["agent_1", "agent_2"]

    page = await browser.ask(client, scope="runs:read")
    assert 'name="agents"' not in page.text
    assert "agents" in (await browser.decide(page, "approve", agents="agent_1")).json["details"]


async def test_signing_in_takes_the_right_password_and_few_guesses(world: World) -> None:
    await world.user("ann@example.com", "acme")
    visitor = Browser(world)

    async def attempt(email: str, password: str) -> int:
        token = (await visitor.get("/api/oauth/sign-in")).token
        return (await visitor.post("/api/oauth/sign-in", token=token, email=email, password=password)).status

    assert await attempt("nobody@example.com", PASSWORD) == 401
    assert [await attempt("ann@example.com", "wrong") for _ in range(10)] == [401] * 10
    assert await attempt("ann@example.com", PASSWORD) == 429
    assert "weftline_session" not in visitor.cookies
    world.clock.pass_s(6)
    assert await attempt(" Ann@Example.com", PASSWORD) == 303
    assert (await visitor.get("/api/oauth/grants")).status == 200
    world.clock.pass_s(13 * 3600)
    check_error(await visitor.get("/api/oauth/grants"), 401, "unauthorized")


@pytest.mark.parametrize("options", [ServerOptions(public_url="https://weft.example.org")])
async def test_behind_https_cookies_are_secure_and_the_metadata_says_https(world: World) -> None:
    await world.user("ann@example.com", "acme")
    visitor = Browser(world)
    page = await visitor.get("/api/oauth/sign-in")
    assert page.headers["set-cookie"].endswith("; Secure")
    form = {"token": page.token, "email": "ann@example.com", "password": PASSWORD}
    signed = await visitor.post("/api/oauth/sign-in", origin="https://weft.example.org", **form)
    assert signed.status == 303 and signed.headers["set-cookie"].endswith("; Secure")
    told = (await visitor.get("/.well-known/oauth-authorization-server")).json
    assert told["token_endpoint"] == "https://weft.example.org/api/oauth/token"


@pytest.mark.parametrize("options", [ServerOptions(public_url="https://weft.example.org")])
async def test_name_that_somebody_let_point_here_is_not_servers_own(world: World) -> None:
    visitor = Browser(world)
    headers = {"host": "evil.example", "origin": "http://evil.example"}
    reply = await visitor.send("POST", "/api/oauth/sign-in", form={"email": "a", "password": "b"}, headers=headers)
    check_error(reply, 403, "forbidden")


async def test_sign_in_form_works_only_in_its_browser(world: World) -> None:
    await world.user("ann@example.com", "acme")
    token = (await Browser(world).get("/api/oauth/sign-in")).token
    victim = Browser(world)
    reply = await victim.post("/api/oauth/sign-in", token=token, email="ann@example.com", password=PASSWORD)
    assert reply.status == 400 and "weftline_session" not in victim.cookies


async def test_another_password_or_the_users_end_signs_out(world: World, browser: Browser) -> None:
    client = await world.client()
    tokens = await client.granted(browser)
    await world.operate("PATCH", "users/ann@example.com", {"password": "unused"})
    check_error(await browser.get("/api/oauth/grants"), 401, "unauthorized")
    userinfo = "/api/oauth/userinfo"
    assert (await world.call("GET", userinfo, credential=tokens["access_token"])).status == 200
    await world.operate("DELETE", "users/ann@example.com")
    check_error(await world.call("GET", userinfo, credential=tokens["access_token"]), 401, "unauthorized")


class _Outline(HTMLParser):
    """What somebody who cannot see the page needs of it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.labelled: set[str] = set()
        self.fields: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if tag == "html":
            assert given["lang"]
        if tag == "label":
            self.labelled.add(given["for"] or "")
        if tag in ("input", "select") and given.get("type") != "hidden":
            self.fields.add(given["id"] or "")


async def test_pages_are_plain_framed_by_nobody_and_readable_by_everybody(world: World, browser: Browser) -> None:
    client = await world.client(name='<script>alert("x")</script>', visibility="public")
    await world.operate("PUT", "users/ann@example.com/workspaces/globex")
    for page in (await browser.get("/api/oauth/sign-in"), await browser.ask(client)):
        outline = _Outline()
        outline.feed(page.text)
        assert "script" not in outline.tags and outline.tags.count("h1") == 1 and "main" in outline.tags
        assert outline.fields and outline.fields <= outline.labelled
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert page.headers["cache-control"] == "no-store" and page.headers["x-frame-options"] == "DENY"
