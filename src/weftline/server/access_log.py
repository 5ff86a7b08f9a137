"""The access log: a line for each request, at level DEBUG."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from time import monotonic
from typing import Any

from weftline.log_context import fields
from weftline.server.http import Request
from weftline.server.logs import ACCESS

access = logging.getLogger(ACCESS)


class AccessLine:
    """The line of one request, whose response it watches."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._began_s = monotonic()
        self._status = 0
        self._send, request.send = request.send, self._noting

    async def _noting(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        await self._send(message)

    def write(self) -> None:
        request, status, took_ms = self._request, self._status, (monotonic() - self._began_s) * 1000
        extra = fields(method=request.method, path=request.path[:500], status=status or None, ms=round(took_ms, 1))
        access.debug("%s %s %s in %.1f ms", request.method, request.path, status or "unanswered", took_ms, extra=extra)
