"""Files of threads over HTTP: written and read as streams and as JSON, searched, and harmless to browsers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from weftline.store.records.thread_files import CHUNK_BYTES
from weftline.testing import ServerProcess

from .conftest import new_key
from .kit import TIMEOUT_S, Api, Reply, check_error
from .scripts import SCRIPTS
from .test_large_bodies import peak_bytes

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


@pytest.fixture
async def fs(api: Api) -> str:
    return await new_thread(api)


async def new_thread(api: Api) -> str:
    """The path of a new thread's files."""
    agent = (await api.post("agents", {"name": "Keeper", "spec": {"modelId": "scripted:hello"}})).json["id"]
    thread = (await api.post("threads", {"agentId": agent})).json["id"]
    return f"threads/{thread}/fs"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def put(api: Api, path: str, data: bytes, mime_type: str = "") -> Reply:
    headers = {"Content-Type": mime_type} if mime_type else {}
    return await api.call("PUT", path, data=data, headers=headers)


@pytest.mark.requirement("thread.file.http_read")
async def test_file_is_read_as_bytes_as_json_and_as_thumbnail(api: Api, fs: str) -> None:
    about = {"mimeType": "image/png", "metadata": {"a": 1}, "width": 2, "height": 3}
    made = await api.post(f"{fs}/img/a.png", {"data": b64(PNG), "thumbnail": b64(PNG[:9]), **about})
    record = made.json
    assert made.status == 201 and record.pop("createdAt")
    expected = {"path": "/img/a.png", "name": "a.png", "storage": "local", "size": 16, "isDirectory": False, **about}
    assert record == expected
    read = await api.get(f"{fs}/img/a.png")
    assert (read.status, read.body, read.headers["Content-Type"]) == (200, PNG, "image/png")
    as_json = (await api.get(f"{fs}/img/a.png?format=json")).json
    assert as_json.pop("createdAt") and as_json == {**expected, "data": b64(PNG)}
    thumbnail = await api.get(f"{fs}/img/a.png?thumbnail=1")
    assert (thumbnail.body, thumbnail.headers["Content-Type"]) == (PNG[:9], "image/png")
    [listed] = (await api.get(fs)).json["entries"]
    assert (listed["path"], listed["isDirectory"]) == ("/img", True)
    [listed] = (await api.get(f"{fs}/img")).json["entries"]
    assert listed["path"] == "/img/a.png" and "data" not in listed
    await put(api, f"{fs}/b.txt", b"one\ntwo\nthree\n")
    stats = (await api.get(f"{fs}?stats=1")).json
    assert (stats["fileCount"], stats["totalSize"]) == (2, 30)
    found = (await api.get(f"{fs}?grep=t[wh]")).json["matches"]
    assert found == [{"path": "/b.txt", "matches": [{"line": 2, "text": "two"}, {"line": 3, "text": "three"}]}]
    found = (await api.get(f"{fs}?find=*.png")).json
    assert (found["paths"], found["total"]) == (["/img/a.png"], 1)
    for missing in ("none", "img/none", "b.txt/none", "none?format=json", "b.txt?thumbnail=1"):
        check_error(await api.get(f"{fs}/{missing}"), 404, "not_found")


@pytest.mark.requirement("thread.file.http_write")
async def test_file_is_written_from_bytes_and_from_json(api: Api, fs: str) -> None:
    raw = await api.call("POST", f"{fs}/a.csv", data=b"a,b", headers={"Content-Type": "text/csv; charset=utf-8"})
    assert (raw.status, raw.json["mimeType"], raw.json["size"]) == (201, "text/csv; charset=utf-8", 3)
    unsaid = await put(api, f"{fs}/b.json", b'{"a": 1}', "application/octet-stream")
    assert (unsaid.status, unsaid.json["mimeType"]) == (200, "application/json")
    assert (await put(api, f"{fs}/c.json", b"[1", "application/json")).json["size"] == 2
    made = await api.post(f"{fs}/d/e", {"type": "directory"})
    assert (made.status, made.json["path"], made.json["isDirectory"]) == (201, "/d/e", True)
    unknown = await api.post(f"{fs}/f", {"data": "", "mimetype": "text/plain"})
    assert unknown.json["warnings"][0]["nearest"] == "mimeType" and unknown.json["size"] == 0
    assert [one["name"] for one in (await api.get(fs)).json["entries"]] == ["a.csv", "b.json", "c.json", "d", "f"]


@pytest.mark.requirement("thread.file.http_write")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"{}", "give either the content, its location or the type"),
        (b'{"data": "eA==", "type": "directory"}', "give either the content, its location or the type"),
        (b'{"data": "e"}', "data: is not base64"),
        (b'{"data": "eA=\\n="}', "data: is not base64"),
        (b'{"data": "eA==", "thumbnail": "?"}', "thumbnail: is not base64"),
        (b'{"data": "eA==", "mimeType": "nope"}', "must be a media type"),
        (b'{"data": "eA==", "mimeType": "text/plain; a=b,text/html"}', "must be a media type"),
        (b'{"data": "eA==", "metadata": [1]}', "metadata"),
        (b'{"data": "eA==", "width": 0}', "width: must be between"),
        (b'{"type": "file"}', "type"),
    ],
)
async def test_malformed_write_is_refused(api: Api, fs: str, body: bytes, words: str) -> None:
    refused = await api.call("POST", f"{fs}/a", data=body, headers={"Content-Type": "application/json"})
    check_error(refused, 400, "invalid_request")
    assert words in refused.json["message"], refused.json
    check_error(await api.get(f"{fs}/a"), 404, "not_found")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("a%00b", "control characters"),
        ("a%0Ab", "control characters"),
        ("%2e%2e/%2e%2e/etc/passwd", "above the root"),
        ("a%2F..%2F..%2Fb", "%2F is part of no name"),
        ("a%2fb", "%2F is part of no name"),
        ("n" * 256, "more than 255 bytes"),
        ("a/" * 65 + "a", "more than 64 levels"),
    ],
)
async def test_hostile_path_is_refused_by_every_method(api: Api, fs: str, path: str, words: str) -> None:
    url = URL(f"{api.url}{api.base}/{fs}/{path}", encoded=True)
    for method in ("GET", "PUT", "POST", "DELETE"):
        headers = {"Authorization": f"Bearer {api.key}", "Content-Type": "text/plain"}
        async with api.http.request(method, url, data=b"x" if method[0] == "P" else None, headers=headers) as reply:
            told = await reply.json()
            assert reply.status == 400 and words in told["message"], (method, told)
    assert (await api.get(fs)).json["entries"] == []


async def test_names_are_decoded_once_and_paths_normalised(api: Api, fs: str) -> None:
    headers = {"Authorization": f"Bearer {api.key}", "Content-Type": "text/plain"}
    for path, stored in (
        ("caf%C3%A9%20%23%3F.txt", "/café #?.txt"),
        ("100%2525", "/100%25"),
        ("/x/./y/..//z.txt/", "/x/z.txt"),
    ):
        url = URL(f"{api.url}{api.base}/{fs}/{path}", encoded=True)
        async with api.http.put(url, data=b"x", headers=headers) as reply:
            assert (await reply.json())["path"] == stored
    check_error(await put(api, f"{fs}/", b"x"), 409, "conflict")


async def test_remove_takes_files_and_empty_folders(api: Api, fs: str) -> None:
    await put(api, f"{fs}/d/a", b"x")
    check_error(await api.call("DELETE", f"{fs}/d"), 409, "conflict")
    check_error(await api.call("DELETE", f"{fs}/"), 409, "conflict")
    assert (await api.call("DELETE", f"{fs}/d/a")).status == 200
    check_error(await api.call("DELETE", f"{fs}/d/a"), 404, "not_found")
    assert (await api.call("DELETE", f"{fs}/d")).status == 200
    assert (await api.get(fs)).json["entries"] == []
    await put(api, f"{fs}/a", b"x")
    check_error(await put(api, f"{fs}/a/b", b"x"), 409, "conflict")
    assert (await api.get(f"{fs}/a")).body == b"x"


async def test_folder_is_listed_in_pages(api: Api, fs: str) -> None:
    for name in "cab":
        await put(api, f"{fs}/d/{name}", b"x")
    first = (await api.get(f"{fs}/d?limit=2")).json
    assert ([one["name"] for one in first["entries"]], first["nextCursor"]) == (["a", "b"], "b")
    second = (await api.get(f"{fs}/d?limit=2&cursor={first['nextCursor']}")).json
    assert ([one["name"] for one in second["entries"]], second["nextCursor"]) == (["c"], None)


@pytest.mark.requirement("thread.file.safe_http")
@pytest.mark.parametrize(
    ("mime_type", "inline"),
    [
        ("image/png", True),
        ("text/plain; charset=utf-8", True),
        ("application/pdf", True),
        ("text/html", False),
        ("image/svg+xml", False),
        ("application/xhtml+xml", False),
        ("text/xml", False),
        ("application/javascript", False),
        ("TEXT/HTML", False),
        ("unknown/type", False),
    ],
)
async def test_stored_file_runs_no_script_on_this_origin(api: Api, fs: str, mime_type: str, inline: bool) -> None:
    await put(api, f'{fs}/a"b.x', b"<script>alert(1)</script>", mime_type)
    for method in ("GET", "HEAD"):
        headers = (await api.call(method, f'{fs}/a"b.x')).headers
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Content-Type"] == mime_type
        assert headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
        way = "inline" if inline else "attachment"
        assert headers["Content-Disposition"] == f"{way}; filename*=UTF-8''a%22b.x"
    await api.post(f"{fs}/t", {"data": "", "thumbnail": b64(b"<svg onload=alert(1)>")})
    thumbnail = (await api.get(f"{fs}/t?thumbnail=1")).headers
    assert thumbnail["Content-Type"] == "application/octet-stream"
    assert thumbnail["Content-Disposition"].startswith("attachment") and thumbnail["Content-Security-Policy"]


async def test_large_file_goes_up_and_down_in_pieces(api: Api, fs: str) -> None:
    piece = bytes(range(256)) * 1000

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield piece

    headers = {"Authorization": f"Bearer {api.key}"}
    async with asyncio.timeout(TIMEOUT_S):
        async with api.http.put(f"{api.url}{api.base}/{fs}/large", data=pieces(), headers=headers) as reply:
            assert (await reply.json())["size"] == 40 * len(piece)
        read = await api.get(f"{fs}/large")
        assert read.body == piece * 40 and read.headers["Content-Length"] == str(40 * len(piece))
    assert (await api.call("HEAD", f"{fs}/large")).body == b""
    check_error(await api.get(f"{fs}/large?format=yaml"), 400, "invalid_request")


@pytest.mark.requirement("thread.file.large")
async def test_large_file_takes_little_memory(tmp_path: Path) -> None:
    piece, count = bytes(range(256)) * 1024, 320  # 80 MB
    body = hashlib.sha256(piece * count).hexdigest()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield piece

    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", await asyncio.to_thread(new_key, server))
            fs, headers = await new_thread(api), {"Authorization": f"Bearer {api.key}"}
            url = f"{api.url}{api.base}/{fs}/large"
            before = peak_bytes(server)
            sending = asyncio.ensure_future(http.put(url, data=pieces(), headers=headers))
            await api.events(await api.start("hello"))  # other runs go on meanwhile
            assert (await sending).status == 200
            read = hashlib.sha256()
            async with http.get(url, headers=headers) as reply:
                async for data in reply.content.iter_any():
                    read.update(data)
            assert read.hexdigest() == body
            assert peak_bytes(server) - before < 40 * 1024 * 1024


@pytest.mark.requirement("thread.file.large")
async def test_upload_that_is_cut_off_leaves_the_earlier_file(api: Api, fs: str) -> None:
    await put(api, f"{fs}/a", b"before")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rsplit(":", 1)[1]))
    head = (
        f"PUT {api.base}/{fs}/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        f"Content-Length: {4 * CHUNK_BYTES}\r\n\r\n"
    )
    writer.write(head.encode() + b"x" * 3 * CHUNK_BYTES)
    await writer.drain()
    writer.close()
    assert await reader.read() == b""
    assert (await api.get(f"{fs}/a")).body == b"before"
    assert (await api.get(f"{fs}?stats=1")).json["totalSize"] == 6


async def test_file_over_the_limit_is_refused_before_it_is_sent(api: Api, fs: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rsplit(":", 1)[1]))
    head = (
        f"PUT {api.base}/{fs}/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        f"Content-Length: {256 * 1024 * 1024 + 1}\r\n\r\n"
    )
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.readuntil(b"}"), TIMEOUT_S)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ") and b"quota_exceeded" in answer and b'"limit":"file"' in answer


async def test_files_of_terminated_thread_are_read_only(api: Api, fs: str) -> None:
    await put(api, f"{fs}/a", b"x")
    assert (await api.call("DELETE", fs.removesuffix("/fs"))).status == 200
    assert (await api.get(f"{fs}/a")).body == b"x"
    for reply in (
        await put(api, f"{fs}/a", b"y"),
        await api.post(f"{fs}/d", {"type": "directory"}),
        await api.call("DELETE", f"{fs}/a"),
    ):
        check_error(reply, 409, "thread_ended")


async def test_files_of_another_workspace_do_not_exist(api: Api, other_api: Api, fs: str) -> None:
    await put(api, f"{fs}/a", b"x")
    for reply in (
        await other_api.get(fs),
        await other_api.get(f"{fs}/a"),
        await put(other_api, f"{fs}/a", b"y"),
        await other_api.post(f"{fs}/a", {"data": ""}),
        await other_api.call("DELETE", f"{fs}/a"),
    ):
        check_error(reply, 404, "not_found")


@pytest.mark.requirement("thread.file.http_write")
async def test_file_is_registered_by_its_location(api: Api, fs: str) -> None:
    given = {"location": "http://ann:pw@127.0.0.1:9/a.csv?key=s3cret", "mimeType": "text/csv", "size": 7}
    made = await api.post(f"{fs}/a", given)
    assert (made.status, made.json["storage"], made.json["size"]) == (201, "url", 7)
    assert made.json["location"] == "http://127.0.0.1:9/a.csv" and b"s3cret" not in (await api.get(fs)).body
    for query in ("", "?format=json"):
        refused = await api.get(f"{fs}/a{query}")
        check_error(refused, 502, "location_unavailable")
        assert "does not connect to" in refused.json["message"] and b"s3cret" not in refused.body
    check_error(await api.post(f"{fs}/b", {"location": "file:///etc/passwd"}), 400, "invalid_request")
    check_error(await api.post(f"{fs}/b", {"location": "http://host/", "data": ""}), 400, "invalid_request")


async def test_file_that_is_elsewhere_is_sent_on(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 300_000) if request.path == "/a" else web.Response(status=500)

    app = web.Application()
    app.router.add_get("/{name}", answer)
    config = '[server]\nallow_egress = ["127.0.0.1"]\n'
    async with TestServer(app) as there, aiohttp.ClientSession() as http:
        with ServerProcess(tmp_path, scripts=SCRIPTS, config=config) as server:
            api = Api(http, server.url, "acme", await asyncio.to_thread(new_key, server))
            fs = await new_thread(api)
            for name in "ab":
                await api.post(f"{fs}/{name}", {"location": str(there.make_url(f"/{name}")), "size": 1})
            found = await api.get(f"{fs}/a")
            assert (found.status, found.body) == (200, b"x" * 300_000)
            assert (await api.call("HEAD", f"{fs}/a")).headers["X-Content-Type-Options"] == "nosniff"
            check_error(await api.get(f"{fs}/b"), 502, "location_unavailable")
