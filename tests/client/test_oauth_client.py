from __future__ import annotations

import asyncio
import base64
import hashlib
from time import time
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.json import decode, encode

from weftline.client import (
    AsyncClient,
    AsyncOAuthClient,
    AuthError,
    Client,
    OAuthClient,
    OAuthError,
    OAuthTokens,
    ScopeError,
)
from weftline.testing import ServerProcess

from .stand_in import StandIn, reply

TOKEN = "/api/oauth/token"


def oauth(stand_in: StandIn) -> AsyncOAuthClient:
    return AsyncOAuthClient(
        client_id="app", client_secret="s3cret", base_url=stand_in.url, redirect_uri="http://localhost/cb"
    )


def form(stand_in: StandIn, number: int = 0) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(stand_in.to("POST", TOKEN)[number].body.decode()).items()}


def test_the_code_flow_proves_itself_with_pkce(stand_in: StandIn) -> None:
    stand_in.on("POST", TOKEN, reply({"access_token": "at", "expires_in": 3600, "refresh_token": "rt", "scope": "a b"}))
    app = OAuthClient(
        client_id="app", client_secret="s3cret", base_url=stand_in.url, redirect_uri="http://localhost/cb"
    )
    request = app.authorization(scopes=["runs:read", "runs:write"])
    query = {name: values[0] for name, values in parse_qs(urlsplit(request.url).query).items()}
    assert (query["response_type"], query["code_challenge_method"]) == ("code", "S256")
    assert query["scope"] == "runs:read runs:write"
    tokens = app.exchange_code("the-code", request=request, state=query["state"])
    assert (tokens.access_token, tokens.refresh_token, tokens.fresh) == ("at", "rt", True)
    sent = form(stand_in)
    assert (sent["grant_type"], sent["code"], sent["redirect_uri"]) == (
        "authorization_code",
        "the-code",
        "http://localhost/cb",
    )
    challenge = base64.urlsafe_b64encode(hashlib.sha256(sent["code_verifier"].encode()).digest()).rstrip(b"=").decode()
    assert challenge == query["code_challenge"]
    assert "s3cret" not in repr(app)
    assert "at" not in repr(tokens).replace("expires_at", "")


def test_an_answer_to_another_request_is_refused(stand_in: StandIn) -> None:
    app = OAuthClient(client_id="app", client_secret="x", base_url=stand_in.url, redirect_uri="http://localhost/cb")
    with pytest.raises(OAuthError) as caught:
        app.exchange_code("code", request=app.authorization(scopes=[]), state="forged")
    assert caught.value.error == "state_mismatch"
    assert stand_in.asked == []


async def test_token_source_refreshes_once_for_all_and_before_token_expires(stand_in: StandIn) -> None:
    stand_in.on(
        "POST",
        TOKEN,
        reply({"access_token": "short", "expires_in": 59}),
        reply({"access_token": "long", "expires_in": 3600}),
    )
    stored: list[OAuthTokens] = []
    source = oauth(stand_in).refresh_source("rt", on_tokens=stored.append)
    assert set(await asyncio.gather(*(source.token() for _ in range(5)))) == {"short"}
    assert set(await asyncio.gather(*(source.token() for _ in range(5)))) == {"long"}
    assert await source.token() == "long"
    assert len(stand_in.to("POST", TOKEN)) == 2
    assert [one.refresh_token for one in stored] == ["rt", "rt"]
    assert form(stand_in)["refresh_token"] == "rt"


async def test_tokens_in_hand_are_used_first(stand_in: StandIn) -> None:
    source = oauth(stand_in).refresh_source(OAuthTokens("in-hand", time() + 3600, "rt"))
    assert await source.token() == "in-hand"
    assert stand_in.asked == []


async def test_a_client_signs_in_again_when_its_token_is_refused(stand_in: StandIn) -> None:
    stand_in.on("POST", TOKEN, reply({"access_token": "t1"}), reply({"access_token": "t2"}))
    stand_in.on("GET", "/models", reply({"error": "x"}, status=401), reply({"models": []}))
    source = oauth(stand_in).client_credentials_source(scopes=["models:read"])
    async with AsyncClient(token_source=source, workspace="acme", base_url=stand_in.url) as client:
        await client.list_models()
    assert [one.headers["Authorization"] for one in stand_in.to("GET", "/models")] == ["Bearer t1", "Bearer t2"]
    assert (form(stand_in)["grant_type"], form(stand_in)["scope"]) == ("client_credentials", "models:read")


async def test_a_refusal_is_told_in_the_words_of_the_protocol(stand_in: StandIn) -> None:
    stand_in.on("POST", TOKEN, reply({"error": "invalid_grant", "error_description": "used before"}, status=400))
    with pytest.raises(OAuthError) as caught:
        await oauth(stand_in).refresh("rt")
    assert (caught.value.error, caught.value.description, caught.value.status) == ("invalid_grant", "used before", 400)


async def test_a_failed_refresh_is_not_remembered(stand_in: StandIn) -> None:
    stand_in.on("POST", TOKEN, reply(b"oops", status=500), reply({"access_token": "t"}))
    source = oauth(stand_in).refresh_source("rt")
    with pytest.raises(OAuthError):
        await source.token()
    assert await source.token() == "t"


async def test_a_token_can_be_looked_at_and_revoked(stand_in: StandIn) -> None:
    stand_in.on("POST", "/api/oauth/introspect", reply({"active": True, "scope": "a b", "exp": 5}))
    stand_in.on("POST", "/api/oauth/revoke", reply({}))
    workspace = {"id": "w", "slug": "acme", "name": "Acme"}
    stand_in.on(
        "GET",
        "/api/oauth/userinfo",
        reply({"sub": "u", "email": "u@x", "workspace": workspace}),
        reply({"error": "x", "code": "unauthorized"}, status=401),
    )
    app = oauth(stand_in)
    assert (await app.introspect("t")).active
    await app.revoke("t")
    assert (await app.userinfo("t")).workspace.slug == "acme"
    with pytest.raises(AuthError):
        await app.userinfo("t")


@pytest.mark.requirement("wire.client.credentials", "wire.client.api_errors")
async def test_an_application_signs_in_to_a_real_server(server: ServerProcess, client: AsyncClient) -> None:
    scopes = ["runs:read", "runs:write", "mantyx.identity:read"]
    wanted = {"name": "App", "allowedScopes": scopes, "allowsClientCredentials": True}
    made = decode(await client.http.call("POST", "/oauth-apps", body=encode(wanted)))
    app = AsyncOAuthClient(client_id=made["clientId"], client_secret=made["clientSecret"], base_url=server.url)
    source = app.client_credentials_source()
    token = await source.token()
    assert (await app.introspect(token)).active
    assert (await app.userinfo(token)).workspace.slug == "acme"

    def use() -> str:
        with Client(token_source=source, workspace="acme", base_url=server.url) as signed_in:
            text = signed_in.run("hi", model_id="scripted:hello").text
            with pytest.raises(ScopeError) as caught:
                signed_in.list_models()
            assert caught.value.required_scopes == ("models:read",)
        return text

    assert await asyncio.to_thread(use) == "hello"
    await app.revoke(token)
    async with AsyncClient(token_source=source, workspace="acme", base_url=server.url) as signed_in:
        assert (await signed_in.run("hi", model_id="scripted:hello")).text == "hello"
    assert await source.token() != token
