"""API keys over HTTP: made once, shown never again, ended at once."""

from __future__ import annotations

import pytest

from .kit import World, check_error

KEYS = "/api/v1/workspaces/acme/api-keys"
MODELS = "/api/v1/workspaces/acme/models"


async def test_a_key_is_created_listed_read_and_revoked(world: World) -> None:
    key = await world.key(name="first")
    made = await world.call("POST", KEYS, credential=key, body={"name": "second", "usage": "developer_api"})
    assert made.status == 201 and made.headers["cache-control"] == "no-store"
    second = made.json
    assert second["key"].startswith(second["prefix"]) and second["agentIds"] == []
    assert (await world.call("GET", MODELS, credential=second["key"])).status == 200

    listed = await world.call("GET", KEYS, credential=key)
    assert [one["name"] for one in listed.json["keys"]] == ["first", "second"]
    read = await world.call("GET", f"{KEYS}/{second['id']}", credential=key)
    assert read.json == {name: value for name, value in second.items() if name != "key"}
    for reply in (listed, read):
        assert second["key"] not in reply.text and key not in reply.text

    assert (await world.call("DELETE", f"{KEYS}/{second['id']}", credential=key)).json == {"ok": True}
    check_error(await world.call("GET", MODELS, credential=second["key"]), 401, "unauthorized")
    assert (await world.call("DELETE", f"{KEYS}/{second['id']}", credential=key)).status == 200
    assert [one["name"] for one in (await world.call("GET", KEYS, credential=key)).json["keys"]] == ["first"]
    assert (await world.call("GET", f"{KEYS}/{second['id']}", credential=key)).json["revokedAt"]


async def test_a_key_of_another_workspace_is_not_to_be_found(world: World) -> None:
    key, other = await world.key("acme"), await world.key("globex")
    theirs = (await world.call("GET", "/api/v1/workspaces/globex/api-keys", credential=other)).json["keys"][0]["id"]
    for method in ("GET", "DELETE"):
        check_error(await world.call(method, f"{KEYS}/{theirs}", credential=key), 404, "not_found")
    assert (await world.call("GET", "/api/v1/workspaces/globex/models", credential=other)).status == 200


async def test_a_key_with_an_allow_list_makes_no_other_keys(world: World) -> None:
    narrow = await world.key(agents=["agent_1"])
    for method, path in (("POST", KEYS), ("GET", KEYS), ("POST", "/api/v1/workspaces/acme/oauth-apps")):
        check_error(await world.call(method, path, credential=narrow, body={"name": "x"}), 403, "forbidden")


async def test_key_for_unknown_agents_is_refused_with_their_names(world: World) -> None:
    key = await world.key()
    made = await world.call("POST", "/api/v1/workspaces/acme/agents", credential=key, body={"name": "Mine", "spec": {}})
    mine = made.json
    reply = await world.call("POST", KEYS, credential=key, body={"agentIds": [mine["id"], "agent_1", "gone"]})
    error = check_error(reply, 400, "invalid_request")
    assert "'agent_1'" in error["message"] and "'gone'" in error["message"] and mine["id"] not in error["message"]
    for name in (mine["id"], mine["slug"]):
        narrow = await world.call("POST", KEYS, credential=key, body={"agentIds": [name]})
        assert narrow.status == 201 and narrow.json["agentIds"] == [mine["id"]]
    theirs = await world.key("globex")
    path = "/api/v1/workspaces/globex/api-keys"
    check_error(
        await world.call("POST", path, credential=theirs, body={"agentIds": [mine["id"]]}), 400, "invalid_request"
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"no JSON",
        {"name": 5},
        {"usage": "admin"},
        {"agentIds": ["a b"]},
        {"agentIds": []},
        {"name": "x" * 300},
    ],
    ids=repr,
)
async def test_a_body_that_does_not_fit_is_refused(world: World, body: object) -> None:
    check_error(await world.call("POST", KEYS, credential=await world.key(), body=body), 400, "invalid_request")
