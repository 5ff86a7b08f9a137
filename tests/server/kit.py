"""A client for tests that keeps nothing from them: raw answers, raw frames, and a reader that is strict about both."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import aiohttp
from msgspec import Struct

from weftline.testing import ServerProcess

Json: TypeAlias = dict[str, Any]

TIMEOUT_S = 120
TERMINAL = ("result", "error", "cancelled")
KEEP_ALIVE = b": keep-alive"


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Frame(Struct, frozen=True):
    """One event of a stream, with the bytes it came in."""

    seq: int
    type: str
    raw: bytes
    body: Json

    @property
    def payload(self) -> Json:
        """The event's fields as they stand at the top level."""
        return {key: value for key, value in self.body.items() if key not in ("seq", "type", "data")}

    def __getitem__(self, name: str) -> Any:
        """A field of the event."""
        return self.body[name]


def parse_frame(raw: bytes) -> Frame:
    """Reads a frame of exactly three lines; anything else is a failure of the server."""
    lines = raw.decode().split("\n")
    assert len(lines) == 3, raw
    assert lines[0].startswith("id: ") and lines[1].startswith("event: ") and lines[2].startswith("data: "), raw
    body = json.loads(lines[2][6:])
    seq, kind = int(lines[0][4:]), lines[1][7:]
    assert body["seq"] == seq and type(body["seq"]) is int and body["type"] == kind, raw
    return Frame(seq, kind, raw, body)


class Stream:
    """An open event stream. `frames` has every frame read so far."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.frames: list[Frame] = []
        self.comments: list[bytes] = []
        self._buffer = b""

    async def next(self) -> Frame | None:
        """The next event; None when the server has closed the stream."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                head, mark, rest = self._buffer.partition(b"\n\n")
                if mark:
                    self._buffer = rest
                    if head.startswith(b":"):
                        self.comments.append(head)
                        continue
                    frame = parse_frame(head)
                    self.frames.append(frame)
                    return frame
                data = await self.response.content.readany()
                if not data:
                    assert self._buffer == b"", "the stream was cut inside a frame"
                    return None
                self._buffer += data

    async def until(self, kind: str) -> Frame:
        """Reads on to the next event of that type."""
        while (frame := await self.next()) is not None:
            if frame.type == kind:
                return frame
        raise AssertionError(f"the stream ended without {kind}: {types(self.frames)}")

    async def rest(self) -> list[Frame]:
        """Reads to the end; returns every frame of this stream."""
        while await self.next() is not None:
            pass
        return self.frames


class Api:
    """One workspace of a running server, with its API key."""

    def __init__(self, http: aiohttp.ClientSession, url: str, slug: str, key: str) -> None:
        self.http = http
        self.url = url
        self.slug = slug
        self.key = key
        self.base = f"/api/v1/workspaces/{slug}"

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = "",
    ) -> Reply:
        """Sends a request. `path` is below the workspace unless it begins with a slash; `key` None sends none."""
        sent = dict(headers or {})
        if key is not None and not any(name.lower() in ("authorization", "x-api-key") for name in sent):
            sent["Authorization"] = f"Bearer {key or self.key}"
        if body is not None:
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        url = self.url + (path if path.startswith("/") else f"{self.base}/{path}")
        async with (
            asyncio.timeout(TIMEOUT_S),
            # A BytesIO, because raw bytes of some size make aiohttp warn.
            self.http.request(
                method, url, data=None if data is None else io.BytesIO(data), headers=sent, allow_redirects=False
            ) as response,
        ):
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, **options: Any) -> Reply:
        return await self.call("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> Reply:
        return await self.call("POST", path, body, **options)

    async def start(self, script: str, **spec: Any) -> str:
        """Creates a run of a script and returns its id."""
        spec.setdefault("prompt", "hello" if "messages" not in spec else None)
        reply = await self.post("agent-runs", {"modelId": f"scripted:{script}", **spec})
        assert reply.status == 202, reply.body
        return reply.json["runId"]

    async def send(self, session: str, prompt: str = "hello", **spec: Any) -> str:
        """Sends a message to a session and returns the run's id."""
        reply = await self.post(f"agent-sessions/{session}/messages", {"prompt": prompt, **spec})
        assert reply.status == 202, reply.body
        return reply.json["runId"]

    async def session(self, script: str, **spec: Any) -> str:
        reply = await self.post("agent-sessions", {"modelId": f"scripted:{script}", **spec})
        assert reply.status == 201, reply.body
        return reply.json["sessionId"]

    async def snapshot(self, run: str) -> Json:
        reply = await self.get(f"agent-runs/{run}")
        assert reply.status == 200, reply.body
        return reply.json

    @asynccontextmanager
    async def stream(
        self, run: str, *, last_seq: object = None, last_event_id: object = None
    ) -> AsyncGenerator[Stream]:
        headers = {"Authorization": f"Bearer {self.key}"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = str(last_event_id)
        params = {} if last_seq is None else {"lastSeq": str(last_seq)}
        url = f"{self.url}{self.base}/agent-runs/{run}/stream"
        async with self.http.get(url, headers=headers, params=params) as response:
            assert response.status in (200, 204), await response.read()
            yield Stream(response)

    async def events(self, run: str, **cursor: object) -> list[Frame]:
        """Everything that a stream opened now delivers until the server closes it."""
        async with self.stream(run, **cursor) as stream:
            return await stream.rest()

    async def play(self, script: str, **spec: Any) -> list[Frame]:
        """Creates a run and follows it to its end."""
        return await self.events(await self.start(script, **spec))

    async def answer(self, run: str, call: str, **fields: Any) -> Reply:
        return await self.post(f"agent-runs/{run}/tool-results", {"toolUseId": call, **fields})

    async def cancel(self, run: str) -> Reply:
        return await self.post(f"agent-runs/{run}/cancel")


async def until_not_ready(api: Api) -> None:
    """Asks until the server says that it takes no work."""
    async with asyncio.timeout(TIMEOUT_S):
        while (await api.get("/readyz")).status == 200:
            pass


def types(frames: list[Frame], *, without: tuple[str, ...] = ("assistant_delta",)) -> list[str]:
    return [frame.type for frame in frames if frame.type not in without]


def of_type(frames: list[Frame], kind: str) -> list[Frame]:
    return [frame for frame in frames if frame.type == kind]


def local_tool(name: str = "lookup", **fields: Any) -> Json:
    return {"kind": "local", "name": name, "description": "Looks something up.", **fields}


def check_error(reply: Reply, status: int, code: str) -> Json:
    """Asserts the one error shape and returns the body."""
    assert reply.status == status, reply.body
    assert reply.headers["Content-Type"] == "application/json"
    body: Json = reply.json
    assert body["code"] == code, body
    for field in ("error", "code", "message"):
        assert isinstance(body[field], str) and body[field], body
    assert isinstance(body.get("hint", ""), str) and "detail" not in body, body
    return body


async def logged(server: ServerProcess, *words: str) -> list[str]:
    """The lines of the server's log with all these words, once there are any: a thread reads it."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (found := [line for line in list(server.log) if all(word in line for word in words)]):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return found
