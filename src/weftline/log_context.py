"""The context of log lines: the run and the request that the current code works for.

The code that begins such work sets it once. Everything awaited or started from there inherits it, including the threads
of synchronous tools, so that a line that a tool logs also names its run.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from msgspec import Struct


class RunInfo(Protocol):
    """A run while it is being driven."""

    run_id: str
    """Its public id."""
    workspace_slug: str
    """Empty until the run is open."""


class RequestInfo(Struct, eq=False):
    """A request while it is being handled."""

    id: str
    """The id that the response carries as `X-Request-Id`."""
    workspace: str = ""
    """The slug of the credential's workspace, once the credential was validated."""


current_run: ContextVar[RunInfo | None] = ContextVar("current_run", default=None)
current_request: ContextVar[RequestInfo | None] = ContextVar("current_request", default=None)


def fields(**values: str | int | float | None) -> dict[str, Any]:
    """Returns the `extra` of a log call: the line's values, for programs. A JSON log has them as separate fields.

    A name may end in `_` to avoid a Python keyword; None is left out.
    """
    return {"fields": {name.rstrip("_"): value for name, value in values.items() if value is not None}}
