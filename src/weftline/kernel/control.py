"""The log's vocabulary for requests from outside: messages, pausing, resuming and cancelling."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class _Head(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Like `entries.Head`."""


class MessageQueued(_Head, frozen=True, tag="message.queued"):
    """Someone outside sent a message to the running run. Body: the user message."""

    id: str
    mode: Literal["steer", "follow_up"]


class MessagesTaken(_Head, frozen=True, tag="messages.taken"):
    """These queued messages are in the conversation from the next model call on. Body: `TakenBody`."""

    ids: tuple[str, ...]


class RunPaused(_Head, frozen=True, tag="run.paused"):
    """Somebody has paused the run. Body: `ControlBody`, or none."""

    reason: str = ""
    requested_by: str = ""


class RunResumed(_Head, frozen=True, tag="run.resumed"):
    """Somebody has resumed the run. Body: `ControlBody`, or none."""

    notes: str = ""
    requested_by: str = ""


class CancelRequested(_Head, frozen=True, tag="cancel.requested"):
    reason: str = "user"
    requested_by: str = ""
