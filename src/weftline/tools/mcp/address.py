"""The location of an MCP server: a URL to connect to, or a command that starts it."""

from __future__ import annotations

from functools import cached_property
from typing import Final, Literal, TypeAlias, get_args

from msgspec import Struct

from weftline.text.redaction import Redactor, redact_url

Transport: TypeAlias = Literal["http", "sse"]
"""Streamable HTTP, or the older transport with one long event stream."""


Revision: TypeAlias = Literal["2025-11-25", "2026-07-28"]
"""The revision of the protocol.

The first stands for all that begin with `initialize`, in which a server can ask questions during a call. In the second,
servers ask with a result (`InputRequiredResult`).
"""
TRANSPORTS: Final[tuple[str, ...]] = get_args(Transport)
REVISIONS: Final[tuple[str, ...]] = get_args(Revision)


class McpAddress(Struct, frozen=True, dict=True):
    """A server as one workspace knows it. Sessions are never shared between workspaces."""

    workspace: int
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    transport: Transport = "http"

    @cached_property
    def redactor(self) -> Redactor:
        """Redacts what is sent to the server."""
        return Redactor.of_request(self.url, dict(self.headers))

    @property
    def display_url(self) -> str:
        return redact_url(self.url)

    def __repr__(self) -> str:
        return f"McpAddress({self.workspace}, {self.display_url!r})"


class McpCommand(Struct, frozen=True, dict=True):
    """A server that runs as a child process, over its standard input and output."""

    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    """Added to the few variables that every program needs, such as PATH; it gets nothing else of our environment."""
    cwd: str | None = None
    workspace: int = 0

    @cached_property
    def redactor(self) -> Redactor:
        return Redactor.of_environment(dict(self.env))

    @property
    def display_url(self) -> str:
        """The program without its arguments, as any of them may be a token."""
        return self.command[0]

    def __repr__(self) -> str:
        return f"McpCommand({self.display_url!r})"


McpPlace: TypeAlias = McpAddress | McpCommand
