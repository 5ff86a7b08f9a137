"""What a log line is about: the run and the request that the current code works for.

The code that begins such work says so once. Everything awaited or started from there inherits it, including the threads
that plain tools run in, so a line that a tool itself logs also names its run.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from msgspec import Struct


class RunInfo(Protocol):
    """A run while it is driven."""

    run_id: str
    """Its public id."""
    workspace_slug: str
    """Empty until the run is open."""


class RequestInfo(Struct, eq=False):
    """A request while it is answered."""

    id: str
    """The id that the answer carries as `X-Request-Id`."""
    workspace: str = ""
    """The slug of the credential's workspace, once the credential is known to be valid."""


current_run: ContextVar[RunInfo | None] = ContextVar("current_run", default=None)
current_request: ContextVar[RequestInfo | None] = ContextVar("current_request", default=None)


def fields(**values: str | int | float | None) -> dict[str, Any]:
    """The `extra` of a log call: what its line says, for programs. A log in JSON has them as fields of their own.

    A name may end in `_` to differ from a word of Python's; None is left out.
    """
    return {"fields": {name.rstrip("_"): value for name, value in values.items() if value is not None}}
