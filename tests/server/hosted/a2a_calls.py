"""An A2A caller of either version, as raw as it gets."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from loopback import listening

from ..kit import TIMEOUT_S, Api, Json, Reply

METHODS = {
    "0.3": {
        "send": "message/send",
        "stream": "message/stream",
        "get": "tasks/get",
        "cancel": "tasks/cancel",
        "subscribe": "tasks/resubscribe",
    },
    "1.0": {
        "send": "SendMessage",
        "stream": "SendStreamingMessage",
        "get": "GetTask",
        "cancel": "CancelTask",
        "subscribe": "SubscribeToTask",
        "list": "ListTasks",
    },
}


async def stored(api: Api, script: str = "seen", *, name: str = "Helper", tools: Any = (), **fields: Any) -> Json:
    """Stores an agent that plays a script."""
    spec = {"modelId": f"scripted:{script}", "tools": list(tools), **fields.pop("spec", {})}
    reply = await api.post("agents", {"name": name, "spec": spec, **fields})
    assert reply.status == 201, reply.body
    return reply.json


class Gate:
    """A tool of the server's that answers when the test says so: its run is at work until then."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        self.entered.set()
        await self.opened.wait()
        return web.Response(text="done")

    async def tool(self, api: Api, name: str = "peer") -> Json:
        """A reference to it."""
        made = await api.post("tools", {"name": name, "url": self.url})
        assert made.status == 201, made.body
        return {"kind": "stored", "id": made.json["id"]}


@asynccontextmanager
async def gate() -> AsyncGenerator[Gate]:
    app = web.Application()
    made = Gate("")
    app.router.add_get("/", made.answer)
    async with listening(app) as url:
        made.url = f"{url}/"
        try:
            async with asyncio.timeout(TIMEOUT_S):
                yield made
        finally:
            made.opened.set()


class Caller:
    """Calls one agent. Results come without the wrapping of version 1.0, and states in the words of 0.3."""

    def __init__(self, api: Api, version: str, slug: str = "helper") -> None:
        self.api = api
        self.version = version
        self.path = f"/api/a2a/{api.slug}/agents/{slug}"

    @property
    def newer(self) -> bool:
        return self.version == "1.0"

    def of(self, slug: str, api: Api | None = None) -> Caller:
        return Caller(api or self.api, self.version, slug)

    def message(self, text: str = "hello", *, parts: Any = None, config: Any = None, **fields: Any) -> Json:
        if parts is None:
            parts = [{"text": text} if self.newer else {"kind": "text", "text": text}]
        role = "ROLE_USER" if self.newer else "user"
        message = {"role": role, "messageId": uuid.uuid4().hex, "parts": parts, **fields}
        message = {name: value for name, value in message.items() if value is not None}
        return {"message": message} if config is None else {"message": message, "configuration": config}

    @property
    def at_once(self) -> Json:
        """The configuration that does not wait."""
        return {"returnImmediately": True} if self.newer else {"blocking": False}

    async def post(self, method: str, params: Any, **fields: Any) -> Reply:
        body = {"jsonrpc": "2.0", "id": 1, "method": METHODS[self.version].get(method, method), "params": params}
        body = {name: value for name, value in {**body, **fields}.items() if value is not ...}
        return await self.api.post(self.path, body, headers={"A2A-Version": "1.0"} if self.newer else {})

    async def call(self, method: str, params: Any) -> Json:
        """The result; raises `AssertionError` for an error."""
        reply = await self.post(method, params)
        assert reply.status == 200 and "error" not in reply.json, reply.body
        return self.plain(reply.json["result"])

    async def error(self, method: str, params: Any, *, status: int = 200) -> Json:
        reply = await self.post(method, params)
        assert reply.status == status, reply.body
        return reply.json["error"]

    async def send(self, text: str = "hello", **fields: Any) -> Json:
        """Sends and waits; returns the task."""
        result = await self.call("send", self.message(text, **fields))
        return result if result.get("kind") != "message" else await self.get(result["taskId"])

    async def get(self, task: str, **params: Any) -> Json:
        return await self.call("get", {"id": task, **params})

    async def events(self, method: str, params: Any) -> list[Json]:
        reply = await self.post(method, params)
        assert reply.headers["Content-Type"].startswith("text/event-stream"), reply.body
        events = [json.loads(part[6:]) for part in reply.body.decode().split("\n\n") if part.startswith("data: ")]
        return [self.plain(event["result"]) for event in events]

    def plain(self, result: Json) -> Json:
        wrapped = next((name for name in ("task", "message", "statusUpdate", "artifactUpdate") if name in result), None)
        if wrapped is not None and self.newer:
            result = result[wrapped]
        state = result.get("status", {}).get("state")
        if state is not None and self.newer:
            assert state.startswith("TASK_STATE_")
            result["status"]["state"] = state.removeprefix("TASK_STATE_").lower().replace("_", "-")
        return result


def texts(messages: Any) -> list[str]:
    """The first text of each message, with who said it."""
    return [f"{one['role'].removeprefix('ROLE_').lower()}: {one['parts'][0]['text']}" for one in messages]


def answer(task: Json) -> str:
    return task["artifacts"][0]["parts"][0]["text"]
