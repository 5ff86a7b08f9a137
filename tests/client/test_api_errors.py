from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from weftline.client import (
    ApiError,
    AsyncClient,
    AuthError,
    BadRequest,
    Client,
    Conflict,
    Forbidden,
    NetworkError,
    NotFound,
    RateLimited,
    Retry,
    ScopeError,
    ServerError,
)
from weftline.testing import ServerProcess

from .stand_in import StandIn, reply


@pytest.mark.requirement("wire.client.api_errors")
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (401, AuthError),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (418, ApiError),
        (500, ServerError),
    ],
)
async def test_every_status_has_its_class(
    to_stand_in: AsyncClient, stand_in: StandIn, status: int, kind: type[ApiError]
) -> None:
    body = {"error": "code_word", "code": "code_word", "message": "A sentence.", "hint": "Do this.", "requestId": "r1"}
    stand_in.on("GET", "/models", reply(body, status=status))
    with pytest.raises(ApiError) as caught:
        await to_stand_in.list_models()
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.code, error.message, error.hint) == (status, "code_word", "A sentence.", "Do this.")
    assert error.request_id == "r1"
    assert b"code_word" in error.body


@pytest.mark.requirement("wire.client.api_errors")
async def test_an_unknown_model_comes_with_candidates(client: AsyncClient) -> None:
    with pytest.raises(BadRequest) as caught:
        await client.run("hi", model_id="nope")
    assert caught.value.code == "invalid_model"
    assert "scripted:hello" in caught.value.candidates
    assert caught.value.hint


@pytest.mark.requirement("wire.client.api_errors")
def test_a_wrong_workspace_comes_with_the_right_one(server: ServerProcess, key: str) -> None:
    with Client(api_key=key, workspace="other", base_url=server.url) as client, pytest.raises(NotFound) as caught:
        client.list_models()
    assert caught.value.correct_slug == "acme"
    assert caught.value.request_id


@pytest.mark.requirement("wire.client.api_errors")
@pytest.mark.parametrize(
    ("body", "headers", "scopes"),
    [
        ({"error": "insufficient_scope", "required": "runs:write"}, {}, ("runs:write",)),
        ({"error": "No.", "code": "insufficient_scope", "required": ["a:b", "c:d"]}, {}, ("a:b", "c:d")),
        (
            {"error": "insufficient_scope"},
            {"WWW-Authenticate": 'Bearer error="insufficient_scope", scope="a:b c:d"'},
            ("a:b", "c:d"),
        ),
    ],
)
async def test_missing_scopes_are_told(
    to_stand_in: AsyncClient,
    stand_in: StandIn,
    body: dict[str, Any],
    headers: dict[str, str],
    scopes: tuple[str, ...],
) -> None:
    stand_in.on("GET", "/models", reply(body, status=403, headers=headers))
    with pytest.raises(ScopeError) as caught:
        await to_stand_in.list_models()
    assert (caught.value.required_scopes, caught.value.code) == (scopes, "insufficient_scope")


@pytest.mark.requirement("wire.client.api_errors")
async def test_wait_that_is_too_long_is_reported_instead(stand_in: StandIn) -> None:
    stand_in.on("GET", "/models", reply({"error": "rate_limited"}, status=429, headers={"Retry-After": "3600"}))
    async with AsyncClient(api_key="key", workspace="acme", base_url=stand_in.url) as client:
        with pytest.raises(RateLimited) as caught:
            await client.list_models()
    assert caught.value.retry_after_s == 3600
    assert len(stand_in.asked) == 1


async def test_a_page_of_a_proxy_is_an_api_error(stand_in: StandIn) -> None:
    stand_in.on("GET", "/models", reply(b"<html>no upstream</html>", status=502))
    async with AsyncClient(
        api_key="key", workspace="acme", base_url=stand_in.url, retry=Retry(attempts=2, first_s=0.001)
    ) as client:
        with pytest.raises(ServerError) as caught:
            await client.list_models()
    assert caught.value.body == b"<html>no upstream</html>"
    assert len(stand_in.asked) == 3


async def test_a_server_that_is_not_there_is_a_network_error(unused_tcp_port: int) -> None:
    async with AsyncClient(
        api_key="key", workspace="acme", base_url=f"http://127.0.0.1:{unused_tcp_port}", retry=Retry(attempts=0)
    ) as client:
        with pytest.raises(NetworkError):
            await client.list_models()


async def _run(client: AsyncClient) -> object:
    return await client.run("hi")


async def _attach(client: AsyncClient) -> object:
    return await (await client.attach("run_1")).result()


@pytest.mark.parametrize("ask", [AsyncClient.list_models, _run, _attach], ids=["list", "run", "attach"])
async def test_a_server_that_never_answered_is_not_looked_for_long(
    unused_tcp_port: int, ask: Callable[[AsyncClient], Awaitable[object]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="weftline.client")
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with AsyncClient(api_key="key", workspace="acme", base_url=url) as client:
        with pytest.raises(NetworkError, match=rf"is a server running at {url}\?"):
            await ask(client)
    assert len([line for line in caplog.messages if " in 0." in line]) == 2


async def test_whoever_asks_for_patience_gets_it(unused_tcp_port: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="weftline.client")
    patient = Retry(attempts=5, first_s=0.001, most_s=0.001)
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with AsyncClient(api_key="key", workspace="acme", base_url=url, retry=patient) as client:
        with pytest.raises(NetworkError):
            await client.list_models()
    assert len([line for line in caplog.messages if "retrying in 0." in line]) == 5


async def test_a_redirect_is_not_followed(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    stand_in.on("GET", "/models", reply({}, status=307, headers={"Location": "http://127.0.0.1:9/"}))
    with pytest.raises(ApiError) as caught:
        await to_stand_in.list_models()
    assert caught.value.status == 307


async def test_an_answer_that_is_no_json_is_a_network_error(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    stand_in.on("GET", "/models", reply(b"hello"))
    with pytest.raises(NetworkError):
        await to_stand_in.list_models()


async def test_a_client_that_is_closed_says_so(server: ServerProcess, key: str) -> None:
    closed = AsyncClient(api_key=key, workspace="acme", base_url=server.url)
    await closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        await closed.list_models()


def test_a_sync_client_that_is_closed_says_so(server: ServerProcess, key: str) -> None:
    closed = Client(api_key=key, workspace="acme", base_url=server.url)
    closed.close()
    closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        closed.list_models()
