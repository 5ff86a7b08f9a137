"""Handles requests with unknown fields: a warning to the client and a log line, or a refusal."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from time import monotonic

from weftline.errors import Issue, invalid
from weftline.server.http import Request
from weftline.wire.responses import Warnings, request_warnings
from weftline.wire.unknown_fields import UnknownField

logger = logging.getLogger(__name__)

STRICT = "handling=strict"
"""The preference (RFC 7240) of a client that wants errors instead of warnings."""
WINDOW_S = 60.0
MAX_LINES = 20
"""Per workspace and window, as a client makes the same mistake with every request."""
MAX_WORKSPACES = 200


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
