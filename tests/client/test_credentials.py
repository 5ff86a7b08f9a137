from __future__ import annotations

import asyncio

import pytest

from weftline.client import AsyncClient, AuthError, Client, InvalidSpec

from .stand_in import StandIn, reply, stream, success

MODELS = reply({"models": [], "defaultModelId": None})
REFUSED = reply({"error": "Invalid", "code": "unauthorized"}, status=401)


class Tokens:
    """A token source that counts."""

    def __init__(self) -> None:
        self.refreshed = 0

    async def token(self, *, refresh: bool = False) -> str:
        if refresh:
            await asyncio.sleep(0)
            self.refreshed += 1
        return f"token{self.refreshed}"


def test_a_client_takes_exactly_one_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFTLINE_API_KEY", raising=False)
    monkeypatch.delenv("MANTYX_API_KEY", raising=False)
    with pytest.raises(InvalidSpec):
        AsyncClient(api_key="a", access_token="b", workspace="acme")
    with pytest.raises(ValueError):
        Client(access_token="a", token_source=lambda: "b", workspace="acme")
    with pytest.raises(InvalidSpec):
        AsyncClient(workspace="acme")
    with pytest.raises(InvalidSpec):
        AsyncClient(api_key=" ", workspace="acme")


@pytest.mark.parametrize("prefix", ["WEFTLINE_", "MANTYX_"])
async def test_missing_option_comes_from_the_environment(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    stand_in.on("GET", "/models", MODELS)
    monkeypatch.setenv(f"{prefix}API_KEY", "from_env")
    monkeypatch.setenv(f"{prefix}WORKSPACE_SLUG", "acme")
    monkeypatch.setenv(f"{prefix}BASE_URL", stand_in.url + "/")
    async with AsyncClient() as client:
        await client.list_models()
    assert stand_in.asked[0].headers["Authorization"] == "Bearer from_env"


@pytest.mark.requirement("wire.client.credentials")
@pytest.mark.parametrize("kind", ["api_key", "access_token", "token_source"])
async def test_credentials_are_sent_uniformly_and_never_shown(stand_in: StandIn, kind: str) -> None:
    stand_in.on("GET", "/models", MODELS)
    given = {kind: (lambda: "s3cret") if kind == "token_source" else "s3cret"}
    async with AsyncClient(workspace="acme", base_url=stand_in.url, **given) as client:  # pyright: ignore[reportArgumentType]
        await client.list_models()
        shown = repr(client) + repr(client.http) + repr(vars(client))
    assert stand_in.asked[0].headers["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in shown


def test_the_sync_client_shows_no_secret() -> None:
    assert "s3cret" not in repr(Client(api_key="s3cret", workspace="acme"))


@pytest.mark.requirement("wire.client.credentials")
async def test_a_refused_token_is_refreshed_once_for_all_who_wait(stand_in: StandIn) -> None:
    source = Tokens()
    stand_in.on("GET", "/models", REFUSED, REFUSED, REFUSED, REFUSED, MODELS)
    async with AsyncClient(token_source=source, workspace="acme", base_url=stand_in.url) as client:
        await asyncio.gather(*(client.list_models() for _ in range(4)))
    assert source.refreshed == 1
    sent = [one.headers["Authorization"] for one in stand_in.to("GET", "/models")]
    assert sent == ["Bearer token0"] * 4 + ["Bearer token1"] * 4


@pytest.mark.requirement("wire.client.credentials")
async def test_a_second_refusal_is_final(stand_in: StandIn) -> None:
    source = Tokens()
    stand_in.on("GET", "/models", REFUSED)
    async with AsyncClient(token_source=source, workspace="acme", base_url=stand_in.url) as client:
        with pytest.raises(AuthError):
            await client.list_models()
    assert (len(stand_in.asked), source.refreshed) == (2, 1)


async def test_a_refused_api_key_is_not_tried_again(stand_in: StandIn) -> None:
    stand_in.on("GET", "/models", REFUSED)
    async with AsyncClient(api_key="key", workspace="acme", base_url=stand_in.url) as client:
        with pytest.raises(AuthError):
            await client.list_models()
    assert len(stand_in.asked) == 1


@pytest.mark.requirement("wire.client.credentials")
async def test_stream_that_is_refused_is_opened_with_new_token(stand_in: StandIn) -> None:
    source = Tokens()
    stand_in.run("run_1", REFUSED, stream(success(1)))
    async with AsyncClient(token_source=source, workspace="acme", base_url=stand_in.url) as client:
        assert (await client.run("hi")).text == "done"
    assert source.refreshed == 1
