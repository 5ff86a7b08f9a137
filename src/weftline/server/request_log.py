"""A line for each request at level DEBUG, for each that was refused, and for unknown fields, unless there are many."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import MutableMapping, Sequence
from contextvars import Context
from time import monotonic
from typing import Any

from weftline.errors import Issue, invalid
from weftline.server.http import Request
from weftline.server.logs import ACCESS
from weftline.trace_context import fields
from weftline.wire.responses import Warnings, request_warnings
from weftline.wire.unknown_fields import UnknownField

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


logger = logging.getLogger(__name__)

WINDOW_S = 60.0
MAX_LINES = 20
"""Per workspace and window; requests without a valid credential share one allowance."""
MAX_WORKSPACES = 200
"""Workspaces counted separately in one window; the rest are counted together."""

_UNAUTHENTICATED = ""
_OTHERS = "other workspaces"


class RefusedRequests:
    """Counts refusals in windows of a minute. A flood from one workspace does not use up another's lines."""

    def __init__(self) -> None:
        self._lines: Counter[str] = Counter()
        self._unlogged: dict[str, Counter[str]] = {}
        self._window: asyncio.TimerHandle | None = None

    def note(self, *, status: int, code: str, method: str, path: str, workspace: str) -> None:
        """Logs or counts a refusal. `workspace` is the credential's; empty without a valid one."""
        if self._window is None:
            self._window = asyncio.get_running_loop().call_later(WINDOW_S, self.report, context=Context())
        if workspace not in self._lines and len(self._lines) >= MAX_WORKSPACES:
            workspace = _OTHERS
        self._lines[workspace] += 1
        if self._lines[workspace] <= MAX_LINES:
            # A server error matters more than a client's.
            level = logging.WARNING if status >= 500 else logging.INFO
            extra = fields(method=method, path=path[:500], status=status, code=code)
            logger.log(level, "refused %s %s: %d %s", method, path[:500], status, code, extra=extra)
        else:
            self._unlogged.setdefault(workspace, Counter())[code] += 1

    def report(self) -> None:
        """Ends the window: one line for each workspace with refusals that were not logged."""
        if self._window is not None:
            self._window.cancel()
            self._window = None
        self._lines.clear()
        unlogged, self._unlogged = self._unlogged, {}
        for workspace, codes in unlogged.items():
            whose = "without a valid credential" if workspace == _UNAUTHENTICATED else f"of {workspace}"
            by_code = ", ".join(f"{count:,} {code}" for code, count in codes.most_common(10))
            logger.info("refused %s more requests %s within a minute: %s", f"{codes.total():,}", whose, by_code)


STRICT = "handling=strict"
"""The preference (RFC 7240) of a client that wants errors instead of warnings."""
"""Per workspace and window, as a client makes the same mistake with every request."""


class UnknownFields:
    """Handles unknown fields; with `refused`, such requests are refused."""

    def __init__(self, *, refused: bool = False) -> None:
        self._refused = refused
        self._lines: Counter[str] = Counter()
        self._until_s = 0.0

    def warnings(self, request: Request, unknown: Sequence[UnknownField]) -> Warnings:
        """Logs the unknown fields and returns the warnings for the response.

        Raises `InvalidRequest` with all of them if the operator refuses unknown fields or the client prefers that.
        """
        if unknown:
            if (self._refused and not request.operator) or prefers_strict(request):
                raise invalid([Issue(field.path, field.refusal) for field in unknown])
            if self._may_log(request.about.workspace):
                fields = [f"{field.path} ({field.nearest}?)" if field.nearest else field.path for field in unknown]
                logger.warning("%s %s has ignored fields: %s", request.method, request.path[:500], ", ".join(fields))
        return request_warnings(unknown)

    def _may_log(self, workspace: str) -> bool:
        if monotonic() >= self._until_s:
            self._lines.clear()
            self._until_s = monotonic() + WINDOW_S
        if workspace not in self._lines and len(self._lines) >= MAX_WORKSPACES:
            workspace = ""
        self._lines[workspace] += 1
        return self._lines[workspace] <= MAX_LINES


def prefers_strict(request: Request) -> bool:
    """Returns True if a `Prefer` header asks for strict handling; values may be quoted or have parameters."""
    header = request.header(b"prefer")
    if header is None:
        return False
    preferences = [preference.partition(";")[0] for preference in header.lower().split(",")]
    return any("".join(preference.replace('"', "").split()) == STRICT for preference in preferences)
