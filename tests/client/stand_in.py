"""A server on the loopback that does what a test tells it to: answers, cut streams, dropped connections."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

from aiohttp import web

from loopback import listening

Behaviour: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Asked(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class StandIn:
    """`on(method, path, *behaviours)`: the n-th request is met by the n-th behaviour, later ones by the last."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self._behaviours: dict[tuple[str, str], list[Behaviour]] = {}
        self._counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._ready = threading.Event()
        self._news = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def on(self, method: str, path: str, *behaviours: Behaviour) -> Self:
        self._behaviours[method, path] = list(behaviours)
        return self

    def run(self, run_id: str, *streams: Behaviour) -> Self:
        """The routes of one run: create, read, stream, tool results, cancel."""
        self.on("POST", "/agent-runs", reply({"runId": run_id, "streamUrl": "/"}, status=202))
        self.on("GET", f"/agent-runs/{run_id}", reply({"id": run_id, "status": "running"}))
        self.on("GET", f"/agent-runs/{run_id}/stream", *streams)
        self.on("POST", f"/agent-runs/{run_id}/tool-results", reply({"ok": True}))
        return self.on("POST", f"/agent-runs/{run_id}/cancel", reply({"ok": True, "status": "cancelled"}))

    def to(self, method: str, path: str) -> list[Asked]:
        """The requests of one route, in order."""
        return [one for one in self.asked if (one.method, one.path) == (method, path)]

    def wait_for(self, method: str, path: str, count: int = 1) -> list[Asked]:
        """The requests of a route, once there are `count`; from a thread that may wait."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.to(method, path)) >= count, timeout=120)
        return self.to(method, path)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix("/api/v1/workspaces/acme")
        body = await request.read()
        with self._news:
            self.asked.append(Asked(request.method, path, dict(request.query), dict(request.headers), body))
            self._news.notify_all()
        behaviours = self._behaviours.get((request.method, path))
        if not behaviours:
            return web.json_response({"error": "not_found", "code": "not_found"}, status=404)
        number = self._counts[request.method, path]
        self._counts[request.method, path] += 1
        return await behaviours[min(number, len(behaviours) - 1)](request)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _main(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{tail:.*}", self._answer)
        async with listening(app, shutdown_timeout=0.1) as self.url:
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


def reply(body: Any = None, *, status: int = 200, headers: dict[str, str] | None = None) -> Behaviour:
    async def behave(request: web.Request) -> web.StreamResponse:
        if isinstance(body, bytes):
            return web.Response(body=body, status=status, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    return behave


async def drop(request: web.Request) -> web.StreamResponse:
    """Closes the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def stream(*chunks: bytes, then: str = "close", headers: dict[str, str] | None = None) -> Behaviour:
    """Streams `chunks`. `then`: `close` ends the body as it should be, `cut` drops the connection, `hang` is silent."""

    async def behave(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **(headers or {})})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then == "cut":
            assert request.transport is not None
            request.transport.abort()
        elif then == "hang":
            await asyncio.get_running_loop().create_future()
        return response

    return behave


def when(ready: threading.Event, behaviour: Behaviour) -> Behaviour:
    """`behaviour`, once `ready` is set."""

    async def behave(request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(ready.wait, 20)
        return await behaviour(request)

    return behave


def hybrid(seq: int, kind: str, /, **payload: Any) -> bytes:
    body = {"seq": seq, "type": kind, **payload, "data": payload}
    return f"id: {seq}\nevent: {kind}\ndata: {json.dumps(body)}\n\n".encode()


def flat(seq: int, kind: str, /, **payload: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'seq': seq, 'type': kind, **payload})}\n\n".encode()


def nested(seq: int, kind: str, /, **payload: Any) -> bytes:
    return f"id: {seq}\nevent: {kind}\ndata: {json.dumps({'seq': seq, 'type': kind, 'data': payload})}\n\n".encode()


def unnamed(seq: int, kind: str, /, **payload: Any) -> bytes:
    """Without an `event:` line."""
    return f"data: {json.dumps({'seq': seq, 'type': kind, 'data': payload})}\n\n".encode()


USAGE: dict[str, Any] = {
    "tokens": {"inputTokens": 7, "cachedTokens": 1, "reasoningTokens": 2, "outputTokens": 3},
    "turns": 1,
    "model": {"id": "m", "provider": "openai", "vendorModelId": "gpt"},
}


def success(seq: int, text: str = "done") -> bytes:
    return hybrid(seq, "result", subtype="success", ok=True, text=text, **USAGE)
