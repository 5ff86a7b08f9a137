"""What a stranger meets at the server's address."""

from __future__ import annotations

import pytest

from weftline import __version__

from .kit import Api, check_error

CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/json, text/html", "", "text/plain"])
async def test_program_is_told_what_this_is_and_where_to_go(api: Api, accept: str) -> None:
    reply = await api.get("/", key=None, headers={"Accept": accept})
    assert reply.status == 200 and reply.headers["Content-Type"] == "application/json"
    about = reply.json
    assert (about["name"], about["version"]) == ("weftline", __version__)
    for path in (about["openapi"], about["health"], about["ready"]):
        assert (await api.get(path, key=None)).status == 200
    for path in (about["models"], about["a2a"]):
        assert (await api.get(path.replace("{slug}", api.slug))).status == 200
    assert (await api.get(about["runs"].replace("{slug}", api.slug))).status == 200


async def test_a_browser_is_shown_a_page(api: Api) -> None:
    reply = await api.get("/", key=None, headers={"Accept": CHROME})
    assert reply.status == 200 and reply.headers["Content-Type"] == "text/html; charset=utf-8"
    assert b"weftline keys create" in reply.body and b'href="/openapi.json"' in reply.body
    assert reply.headers["Vary"] == "accept" and "default-src 'none'" in reply.headers["Content-Security-Policy"]
    head = await api.call("HEAD", "/", key=None)
    assert (head.status, head.body) == (200, b"")
    check_error(await api.post("/", {}), 405, "method_not_allowed")
