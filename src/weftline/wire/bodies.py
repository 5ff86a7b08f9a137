"""Valid request bodies."""

from __future__ import annotations

from msgspec import Struct

from weftline.messages import Blob, File, Image
from weftline.wire.failures import SentFailure
from weftline.wire.limits import DEFAULT_RUN_NAME
from weftline.wire.unknown_fields import UnknownField


class SpecBody(Struct, frozen=True):
    """A valid spec.

    `spec` is the JSON to store: every field as it was sent, except for secrets, which are `[redacted]`, and the
    contents of attachments.
    """

    spec: bytes
    name: str = DEFAULT_RUN_NAME
    agent_id: str | None = None
    model_id: str | None = None
    metadata: dict[str, str] = {}
    secrets: dict[str, dict[str, str]] = {}
    """Header values by tool name and header name."""
    unknown: tuple[UnknownField, ...] = ()
    """Fields that were sent but are unknown."""
    blobs: tuple[Blob, ...] = ()
    """The contents of attachments, to which `spec` refers."""


class RunBody(SpecBody, frozen=True):
    """A run to create."""

    run_id: str | None = None
    """The id that the client chose, instead of one of the server's."""


class SessionBody(SpecBody, frozen=True):
    """A session to create."""


class MessageBody(Struct, frozen=True):
    """A message to a session. `spec` holds only what the message itself contains; see `sessions.effective_spec`."""

    spec: bytes
    metadata: dict[str, str] = {}
    secrets: dict[str, dict[str, str]] = {}
    replaces_tools: bool = False
    unknown: tuple[UnknownField, ...] = ()
    blobs: tuple[Blob, ...] = ()
    run_id: str | None = None
    """The id of its run, as in a `RunBody`."""


class ToolResultBody(Struct, frozen=True):
    """The answer to one client-side call: `result` or `error`, or neither if it was too large."""

    tool_use_id: str
    result: str | None = None
    error: str | None = None
    failure: SentFailure | None = None
    oversize: bool = False
    unknown: tuple[UnknownField, ...] = ()
    token: str = ""
    """The token of the client's lease on the call."""
    files: tuple[Image | File, ...] = ()
    """What the model gets with the `result`."""
