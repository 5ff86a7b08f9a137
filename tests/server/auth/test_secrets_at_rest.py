"""No secret is in a file of the store, in a log line or in an answer other than the one that told it."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from weftline.server.app import App
from weftline.server.routes.every import ROUTES

from .kit import PASSWORD, Browser, Reply, World

RUNS = "/api/v1/workspaces/acme/agent-runs"


def stored_bytes(folder: Path) -> bytes:
    return b"\0".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.requirement("wire.auth.secrets_at_rest")
async def test_secrets_are_told_once_and_kept_nowhere(
    world: World, browser: Browser, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = await world.key()
    client = await world.client(client_credentials=True)
    answered: list[Reply] = []

    async def call(method: str, path: str, credential: str) -> None:
        answered.append(await world.call(method, path, credential=credential, body={"modelId": "x", "prompt": "y"}))

    code = (await browser.approve(client)).redirect["code"]
    tokens = (await client.exchange(code)).json
    own = (await client.token(grant_type="client_credentials")).json["access_token"]
    secrets = [key, client.secret, code, tokens["access_token"], tokens["refresh_token"], own]
    secrets += [browser.cookies["weftline_session"], PASSWORD]

    for credential in (*secrets, "weft_unknown_key_that_is_long"):
        if credential != PASSWORD:
            await call("GET", "/api/v1/workspaces/acme/models", credential)
            await call("GET", "/api/v1/workspaces/globex/models", credential)
            await call("POST", RUNS, credential)
    spec = {"modelId": "scripted:hello", "prompt": "hi"}
    for credential in (key, own):
        made = await world.call("POST", RUNS, credential=credential, body=spec)
        run = made.json["runId"]
        answered += [made, await world.call("GET", f"{RUNS}/{run}/stream", credential=credential)]
        answered.append(await world.call("GET", f"{RUNS}/{run}", credential=credential))
    for path in ("api-keys", "oauth-apps", f"oauth-apps/{client.id}"):
        await call("GET", f"/api/v1/workspaces/acme/{path}", key)
    answered.append(await client.exchange(code))
    answered.append(await browser.get("/api/oauth/grants"))
    answered.append(await client.post("introspect", token=own))

    told = b"\0".join(reply.body for reply in answered)
    stored = stored_bytes(tmp_path / "store")
    assert len(stored) > 10_000
    for secret in secrets:
        assert secret.encode() not in stored, secret[:12]
        assert secret not in caplog.text, secret[:12]
        assert secret.encode() not in told, secret[:12]
    assert b"weft_unknown_key_that_is_long" not in stored + told
    assert "weft_unknown_key_that_is_long" not in caplog.text


async def test_the_key_of_the_hashes_is_the_owners_alone(world: World, tmp_path: Path) -> None:
    await world.client()
    file = tmp_path / "store" / "hash.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(file.read_bytes()) == 32


async def test_a_database_without_its_key_file_lets_nobody_in(world: World, browser: Browser, tmp_path: Path) -> None:
    client = await world.client()
    tokens = await client.granted(browser)
    (tmp_path / "store" / "hash.key").rename(tmp_path / "kept")
    world.app = App(world.app.engine, world.store, world.app.models, ROUTES)
    assert (await world.call("GET", "/api/oauth/userinfo", credential=tokens["access_token"])).status == 401
    (tmp_path / "kept").rename(tmp_path / "store" / "hash.key")
    world.app = App(world.app.engine, world.store, world.app.models, ROUTES)
    assert (await world.call("GET", "/api/oauth/userinfo", credential=tokens["access_token"])).status == 200


async def test_a_stranger_is_not_told_where_the_key_file_is(world: World, tmp_path: Path) -> None:
    """As when the disk is full and the file cannot be made."""
    (tmp_path / "store" / "hash.key").mkdir()
    body = {"client_name": "x", "redirect_uris": ["https://x.example/cb"], "token_endpoint_auth_method": "none"}
    replies = [
        await world.call(
            "POST", "/api/oauth/register", body=body | {"token_endpoint_auth_method": "client_secret_post"}
        ),
        await world.call("GET", "/api/oauth/userinfo", credential="mantyx_at_x"),
    ]
    for reply in replies:
        assert (reply.status, reply.json["code"]) == (503, "unavailable")
        assert str(tmp_path) not in reply.text and "/" not in reply.json["message"]


async def test_damaged_key_file_is_error_not_new_key(world: World, tmp_path: Path) -> None:
    (tmp_path / "store" / "hash.key").write_bytes(b"short")
    reply = await world.call("GET", "/api/oauth/userinfo", credential="mantyx_at_x")
    assert reply.status == 503 and reply.json["code"] == "store_unusable"
    assert str(tmp_path) not in reply.text
    assert (tmp_path / "store" / "hash.key").read_bytes() == b"short"
