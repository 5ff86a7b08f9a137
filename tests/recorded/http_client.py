"""A client of the HTTP API, without a network: it calls the ASGI application of the engine that is recorded."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeAlias, cast

from weftline import Engine, asgi
from weftline.cases import keys

Json: TypeAlias = dict[str, Any]
WORKSPACE = "default"
"""That of the engine, so that its own methods find the client's runs."""


class HttpClient:
    """Sends requests with a key of its own."""

    def __init__(self, app: Any, key: str) -> None:
        self._app = app
        self._key = key

    @classmethod
    async def of(cls, engine: Engine) -> HttpClient:
        """A client of an open engine."""
        made = await keys.add(engine.workspaces, WORKSPACE, name="recorded")
        return cls(asgi(engine), made.secret)

    async def post(self, path: str, body: Json, *, idempotency_key: str = "") -> Json:
        """Posts to a path below that of the workspace."""
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        return await self._call(f"/api/v1/workspaces/{WORKSPACE}/{path}", body, headers)

    async def send_message(self, agent: str, text: str, *, id: str, **fields: Any) -> Json:
        """Sends a message to an agent over A2A, and returns the task at once."""
        message = {"role": "ROLE_USER", "messageId": id, "parts": [{"text": text}], **fields}
        params = {"message": message, "configuration": {"returnImmediately": True}}
        request = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
        reply = await self._call(f"/api/a2a/{WORKSPACE}/agents/{agent}", request, {"a2a-version": "1.0"})
        return cast("Json", reply["result"]["task"])

    async def _call(self, path: str, body: Json, headers: dict[str, str]) -> Json:
        sent = {"host": "weft.example", "authorization": f"Bearer {self._key}", **headers}
        scope: Json = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": ("192.0.2.1", 4711),
        }
        unread = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        messages: list[Json] = []

        async def receive() -> Json:
            if not unread:
                await asyncio.Event().wait()
            return unread.pop()

        async def send(message: Json) -> None:
            messages.append(message)

        await self._app(scope, receive, send)
        reply = b"".join([message.get("body", b"") for message in messages])
        assert messages[0]["status"] in (200, 201, 202), reply
        return cast("Json", json.loads(reply))
