"""Documents by which OAuth clients describe themselves: fetched from where strangers say, and small."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from weftline.net.dial import Dialer
from weftline.net.egress import Egress, Reach
from weftline.server.oauth.app import read_document
from weftline.workspace.client_documents import MAX_DOCUMENT_BYTES, DocumentUnusable

from .certificates import Authority
from .kit import answering, listening


async def fetched(tmp_path: Path, answer: bytes, *, reach: Reach = "loopback") -> bytes:
    authority = Authority(tmp_path)
    dialer = Dialer(Egress(reach=reach), tls=authority.trusted())
    async with listening(answering(answer), tls=authority.server("localhost")) as port:
        try:
            async with asyncio.timeout(120):
                return await read_document(dialer, f"https://localhost:{port}/client.json")
        finally:
            await dialer.aclose()


def http(status: str, *headers: str, body: bytes = b"{}") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


JSON = "Content-Type: application/json"


async def test_a_document_is_fetched_over_https(tmp_path: Path) -> None:
    assert await fetched(tmp_path, http("200 OK", JSON, body=b'{"a":1}')) == b'{"a":1}'


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (http("302 Found", JSON, "Location: /other"), "302"),
        (http("404 Not Found", JSON), "404"),
        (http("200 OK", "Content-Type: text/html"), "not a JSON document"),
        (http("200 OK", JSON, body=b" " * (MAX_DOCUMENT_BYTES + 1)), "more than"),
    ],
)
async def test_anything_but_a_small_json_document_is_refused(tmp_path: Path, answer: bytes, told: str) -> None:
    with pytest.raises(DocumentUnusable, match=told):
        await fetched(tmp_path, answer)


async def test_an_address_inside_is_not_asked(tmp_path: Path) -> None:
    with pytest.raises(DocumentUnusable, match="could not be fetched"):
        await fetched(tmp_path, http("200 OK", JSON), reach="public")
