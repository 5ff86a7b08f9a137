"""Scopes that have two names: either is asked for, granted and told back as it was sent, and both mean the same."""

from __future__ import annotations

import pytest

from .kit import Browser, World, check_error

USERINFO = "/api/oauth/userinfo"
PAIRS = [("identity:read", "mantyx.identity:read"), ("mantyx.identity:read", "identity:read")]


@pytest.mark.parametrize(("asked", "other"), PAIRS)
async def test_a_scope_is_granted_under_either_name(world: World, browser: Browser, asked: str, other: str) -> None:
    client = await world.client(scopes=[other, "runs:read"])
    tokens = await client.granted(browser, scope=f"{asked} runs:read")
    assert tokens["scope"] == f"{asked} runs:read"
    assert (await world.call("GET", USERINFO, credential=tokens["access_token"])).status == 200
    assert (await client.introspect(tokens["access_token"]))["scope"] == f"{asked} runs:read"
    narrow = (await client.refresh(tokens["refresh_token"], scope=other)).json
    assert narrow["scope"] == other
    assert (await world.call("GET", USERINFO, credential=narrow["access_token"])).status == 200


async def test_scope_that_was_not_granted_is_refused_under_either_name(world: World) -> None:
    token = await world.own_token("acme", "runs:read", "knowledge:read")
    reply = await world.call("GET", USERINFO, credential=token)
    assert check_error(reply, 403, "insufficient_scope")["required"] == "mantyx.identity:read"  # what clients look for
    client = await world.client(redirect_uris=[], client_credentials=True, scopes=["knowledge:read"])
    for scope in ("hive:write", "knowledge:write", "identity:read"):
        refused = await client.token(grant_type="client_credentials", scope=scope)
        assert (refused.status, refused.json["error"]) == (400, "invalid_scope")
    granted = await client.token(grant_type="client_credentials", scope="hive:read")
    assert granted.json["scope"] == "hive:read"


async def test_both_names_of_a_scope_are_one(world: World) -> None:
    key = await world.key("acme")
    asked = {
        "name": "Notes",
        "allowsClientCredentials": True,
        "allowedScopes": ["knowledge:read", "runs:read", "hive:read"],
    }
    made = (await world.call("POST", "/api/v1/workspaces/acme/oauth-apps", credential=key, body=asked)).json
    assert list(made["allowedScopes"]) == ["knowledge:read", "runs:read"]
