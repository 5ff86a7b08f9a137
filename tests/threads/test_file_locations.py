"""Files whose content is elsewhere: registered by address, read under the egress rules, shown without secrets."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from weftline.errors import Conflict, InvalidRequest
from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.threads.state import LiveThread
from weftline.workspace.context import FileLimits, Workspaces
from weftline.workspace.thread_locations import LocationUnavailable

from .conftest import state_of


async def _answer(request: web.Request) -> web.Response:
    match request.path:
        case "/file":
            assert request.query["key"] == "s3cret" and request.headers["Authorization"].startswith("Basic ")
            return web.Response(body=b"elsewhere")
        case "/large":
            return web.Response(body=b"x" * 101)
        case "/moved":
            return web.Response(status=302, headers={"Location": "/file"})
        case _:
            return web.Response(status=404)


@pytest.fixture
async def elsewhere() -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_get("/{name}", _answer)
    async with TestServer(app) as server:
        yield server.make_url("/").authority


@pytest.fixture
async def dialer() -> AsyncGenerator[Dialer]:
    dialer = Dialer(Egress("loopback"))
    yield dialer
    await dialer.aclose()


@pytest.fixture
async def state(at: Workspaces, dialer: Dialer) -> LiveThread:
    return await state_of(replace(at, dialer=dialer, files=FileLimits(file_bytes=100)))


@pytest.mark.requirement("thread.file.location")
async def test_file_is_read_from_its_location_each_time(state: LiveThread, elsewhere: str) -> None:
    url = f"http://ann:pw@{elsewhere}/file?key=s3cret"
    made = await state.write_file("/a.csv", b"", location=url, size=9, metadata={"a": 1})
    assert (made.storage, made.size, made.mime_type) == ("url", 9, "text/csv")
    assert made == await state.stat_file("/a.csv") and made.metadata == {"a": 1}
    assert await state.read_file("/a.csv") == b"elsewhere"
    found = await state.read_file_stream("/a.csv")
    assert found is not None
    assert [(one.data, one.index, one.is_last) async for one in found] == [(b"elsewhere", 0, True)]
    assert (await state.get_file_stats()).total_size == 9 and await state.grep_files("else") == []
    await state.write_file("/a.csv", b"here")
    now = await state.stat_file("/a.csv")
    assert now is not None and (now.storage, now.location, now.size) == ("local", "", 4)


@pytest.mark.requirement("thread.file.location_egress")
async def test_location_is_shown_without_credentials_and_query(state: LiveThread, elsewhere: str) -> None:
    made = await state.write_file("/a", b"", location=f"http://ann:pw@{elsewhere}/file?key=s3cret#part")
    assert made.location == f"http://{elsewhere}/file"
    [listed] = await state.readdir_file("/")
    assert listed == made and "s3cret" not in repr(listed) and "pw" not in repr(listed)


@pytest.mark.requirement("thread.file.location")
@pytest.mark.parametrize(
    ("path", "words"),
    [("none", "answers with 404"), ("moved", "answers with 302"), ("large", "has more than 100 bytes")],
)
async def test_content_that_cannot_be_had_is_an_error(state: LiveThread, elsewhere: str, path: str, words: str) -> None:
    await state.write_file("/a", b"", location=f"http://{elsewhere}/{path}?key=s3cret")
    with pytest.raises(LocationUnavailable, match=words) as refused:
        await state.read_file("/a")
    assert refused.value.code == "location_unavailable" and "s3cret" not in str(refused.value)


@pytest.mark.requirement("thread.file.location_egress")
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/",
        "http://[::1]/",
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:169.254.169.254]/",
        "http://localhost/",
    ],
)
async def test_private_address_is_not_dialled(at: Workspaces, url: str) -> None:
    dialer = Dialer(Egress())
    state = await state_of(replace(at, dialer=dialer))
    await state.write_file("/a", b"", location=url)
    with pytest.raises(LocationUnavailable, match="does not connect to"):
        await state.read_file("/a")
    await dialer.aclose()


@pytest.mark.requirement("thread.file.location_egress")
@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("file:///etc/passwd", "Only http and https"),
        ("ftp://host/a", "Only http and https"),
        ("/a", "Only http and https"),
        ("", "Only http and https"),
        ("http://", "location: cannot be used"),
        ("http://host/" + "x" * 8192, "more than 8,192 characters"),
        ("http://host/\ud800", "location: "),
    ],
)
async def test_what_is_no_address_is_refused(state: LiveThread, location: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        await state.write_file("/a", b"", location=location)
    assert await state.stat_file("/a") is None


async def test_location_comes_without_content_and_with_a_possible_size(state: LiveThread) -> None:
    with pytest.raises(InvalidRequest, match="data: must be empty"):
        await state.write_file("/a", b"x", location="http://host/")
    for size in (-1, 101):
        with pytest.raises(InvalidRequest, match="size: must be between 0 and 100"):
            await state.write_file("/a", b"", location="http://host/", size=size)
    await state.mkdir_file("/d")
    with pytest.raises(Conflict, match="/d is a folder"):
        await state.write_file("/d", b"", location="http://host/")


async def test_process_that_reaches_nothing_says_so(at: Workspaces) -> None:
    state = await state_of(at)
    await state.write_file("/a", b"", location="http://host/")
    with pytest.raises(LocationUnavailable, match="does not read files that are elsewhere"):
        await state.read_file("/a")
