"""What a log line is about: the run and the request that the running code works for.

Whoever begins such work says so once. Everything that is awaited or started from there inherits it, also the threads
that plain tools run in, so a line that a tool logs by itself names its run too.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class RunInfo(Protocol):
    """A run while it is driven."""

    run_id: str
    """Its public id."""
    workspace_slug: str
    """Empty until the run is open."""


class RequestInfo:
    """A request while it is answered."""

    __slots__ = ("id", "workspace")

    def __init__(self, id: str) -> None:
        self.id = id
        """The id that the answer carries as `X-Request-Id`."""
        self.workspace = ""
        """The slug of the credential's workspace, once the credential is known to be valid."""


current_run: ContextVar[RunInfo | None] = ContextVar("current_run", default=None)
current_request: ContextVar[RequestInfo | None] = ContextVar("current_request", default=None)
