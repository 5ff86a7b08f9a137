"""Requests to the application within its own process: what a command sends when nobody else has the store open."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from weftline.server.heads import path_and_query, readable
from weftline.server.http import PEER, Application


class Answer(NamedTuple):
    status: int
    body: bytes


async def ask(app: Application, method: str, target: str, body: bytes = b"", *, operator: str) -> Answer:
    """Sends a request of the operator, who is this user of the machine; `target` is the path and the query."""
    path, query = path_and_query(target.encode())
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": readable(path),
        "query_string": query,
        "headers": [(b"host", b"localhost")],
        "client": None,
        PEER: operator,
    }
    unread = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Mapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not unread:
            await asyncio.Event().wait()
        return unread.pop()

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return Answer(sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:]))
