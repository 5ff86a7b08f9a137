"""Clients whose id is the address of a document: what is read, when, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urljoin

import pytest

from weftline.server.options import ServerOptions
from weftline.workspace.client_documents import DocumentUnusable, ReadDocument

from .kit import Browser, Client, Reply, World, check_error
from .test_registration import LOOPBACK, MCP, PATH

ID = "https://host.example/oauth/client.json"
DOCUMENT: dict[str, Any] = {"client_id": ID, "client_name": "Editor", "redirect_uris": [LOOPBACK], "extra": {"a": 1}}


class Documents:
    """What is to be found at addresses, and what was asked for."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {ID: DOCUMENT}
        self.asked: list[str] = []

    async def read(self, url: str) -> bytes:
        self.asked.append(url)
        if url not in self.found:
            raise DocumentUnusable("names a document that could not be fetched")
        found = self.found[url]
        return found if isinstance(found, bytes) else json.dumps(found).encode()


@pytest.fixture
def documents() -> Documents:
    return Documents()


@pytest.fixture
def read_document(documents: Documents) -> ReadDocument:
    return documents.read


def query(client_id: str = ID, **changes: str | None) -> str:
    asked = {"redirect_uri": LOOPBACK, "scope": None, "resource": MCP, **changes}
    return Client(None, client_id, "").query(**asked)  # pyright: ignore[reportArgumentType]


async def refused(browser: Browser, client_id: str = ID) -> str:
    reply = await browser.get(query(client_id))
    check_error(reply, 400, "invalid_request")
    return reply.json["details"]["client_id"]


async def test_a_client_that_is_described_somewhere_asks_and_connects(
    world: World, browser: Browser, documents: Documents
) -> None:
    metadata = (await world.call("GET", "/.well-known/oauth-authorization-server")).json
    assert metadata["client_id_metadata_document_supported"] is True
    client = Client(world, ID, "")
    page = await browser.get(query())
    assert "Editor" in page.text and ID in page.text and "127.0.0.1" in page.text
    code = (await browser.decide(page, "approve")).redirect["code"]
    given = (await client.exchange(code, redirect_uri=LOOPBACK, resource=MCP)).json
    assert given["scope"] == "mcp:connect"
    assert (await world.call("DELETE", PATH, credential=given["access_token"])).status not in (401, 403)
    again = await client.refresh(given["refresh_token"])
    assert again.status == 200 and documents.asked == [ID]


async def test_nobody_is_asked_before_somebody_has_signed_in(world: World, documents: Documents) -> None:
    await world.user("ann@example.com", "acme")
    stranger = Browser(world)
    page = await stranger.get(query())
    assert page.status == 200 and "password" in page.text and documents.asked == []
    back = await stranger.sign_in(page=query())
    asked = urljoin("/api/oauth/sign-in", back.headers["location"])
    assert back.status == 303 and "Editor" in (await stranger.get(asked)).text


async def test_document_is_read_again_after_a_while(world: World, browser: Browser, documents: Documents) -> None:
    for _ in range(3):
        assert "Editor" in (await browser.get(query())).text
    assert documents.asked == [ID]
    documents.found[ID] = {**DOCUMENT, "client_name": "Other", "redirect_uris": ["https://host.example/back"]}
    world.clock.pass_s(601)
    reply = await browser.get(query())
    assert reply.json["details"] == {"redirect_uri": "is not registered for this app"}
    assert "Other" in (await browser.get(query(redirect_uri="https://host.example/back"))).text
    del documents.found[ID]
    world.clock.pass_s(601)
    assert "could not be fetched" in await refused(browser)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"client_id": "https://host.example/other.json"}, "another client"),
        ({"client_id": ID + "/"}, "another client"),
        ({"client_secret": "s"}, "secret"),
        ({"token_endpoint_auth_method": "client_secret_basic"}, "token_endpoint_auth_method"),
        ({"token_endpoint_auth_method": "private_key_jwt"}, "token_endpoint_auth_method"),
        ({"redirect_uris": []}, "redirect_uris"),
        ({"redirect_uris": ["javascript:alert(1)"]}, "redirect_uris"),
        ({"redirect_uris": "https://host.example/"}, "cannot be read"),
        ({"grant_types": ["client_credentials"]}, "grant_types"),
    ],
)
async def test_a_document_that_describes_no_client_is_refused(
    browser: Browser, documents: Documents, change: dict[str, Any], told: str
) -> None:
    documents.found[ID] = {**DOCUMENT, **change}
    assert told in await refused(browser)


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"{" * 10_000])
async def test_value_that_is_not_a_document_is_refused(browser: Browser, documents: Documents, body: bytes) -> None:
    documents.found[ID] = body
    assert "cannot be read" in await refused(browser)


@pytest.mark.parametrize(
    "address",
    [
        "https://host.example",
        "https://user@host.example/a",
        "https://host.example/a/../b",
        "https://host.example/a#b",
        "https://host.example:port/a",
        "https:///a",
        "https://host.example/" + "a" * 500,
        "https://höst.example/a",
    ],
)
async def test_an_address_that_cannot_be_an_id_is_not_read(
    browser: Browser, documents: Documents, address: str
) -> None:
    documents.found[address] = {**DOCUMENT, "client_id": address}
    assert await refused(browser, address)
    assert documents.asked == []


async def test_one_sender_brings_so_many_clients_and_no_more(browser: Browser, documents: Documents) -> None:
    replies: list[Reply] = []
    for number in range(21):
        address = f"https://host.example/{number}"
        documents.found[address] = {**DOCUMENT, "client_id": address}
        replies.append(await browser.get(query(address)))
    assert [reply.status for reply in replies] == [200] * 20 + [429]
    assert len(documents.asked) == 20


class TestSwitchedOff:
    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions(oauth_registration=False)

    async def test_nothing_is_read_and_the_client_is_unknown(self, browser: Browser, documents: Documents) -> None:
        metadata = (await browser.get("/.well-known/oauth-authorization-server")).json
        assert metadata["client_id_metadata_document_supported"] is False
        assert (await browser.get(query())).status == 400 and documents.asked == []


class TestOwnDocument:
    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions(public_url="https://weft.example")

    async def test_the_server_describes_itself_as_a_client_of_others(self, world: World) -> None:
        reply = await world.call("GET", "/api/oauth/client.json")
        document = reply.json
        assert document["client_id"] == "https://weft.example/api/oauth/client.json"
        assert (
            document["token_endpoint_auth_method"] == "none"
            and "http://127.0.0.1/callback" in document["redirect_uris"]
        )


async def test_a_server_without_a_public_address_has_no_document(world: World) -> None:
    check_error(await world.call("GET", "/api/oauth/client.json"), 404, "not_found")
