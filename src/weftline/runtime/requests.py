"""Entries that a process may append to a run that it does not drive."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import DecodeError

from weftline.errors import InvalidRequest
from weftline.kernel import bodies
from weftline.kernel.context import ContextRestored
from weftline.kernel.entries import (
    KIND,
    CallClosed,
    CancelRequested,
    Fact,
    MessageQueued,
    RunPaused,
    RunResumed,
)
from weftline.runtime.live import LiveRun

_BODIES: dict[type[Fact], Callable[[bytes], object] | None] = {
    CallClosed: bodies.decode_closed,
    MessageQueued: bodies.decode_queued,
    CancelRequested: None,
    RunPaused: bodies.decode_control,
    RunResumed: bodies.decode_control,
    ContextRestored: None,
}
"""An answer, a message, or a request by people. All other facts result from what a run does."""


def check_request(head: Fact, body: bytes) -> None:
    """Raises `InvalidRequest` for a fact that may not come from outside, and for a body that cannot be decoded."""
    if type(head) not in _BODIES:
        raise InvalidRequest(f"{KIND[type(head)]} is not a request.")
    decode = _BODIES[type(head)]
    try:
        readable = not body if decode is None or not body else bool(decode(body))
    except DecodeError:
        readable = False
    if not readable:
        raise InvalidRequest(f"The body of {KIND[type(head)]} cannot be read.")


def message_id_of(run: LiveRun, place: int = 0) -> str:
    """The id of the next message to a run; `place` is its position among several that arrive together."""
    return f"msg_{run.state.version + 1 + place}"


def control_body(labels: Mapping[str, str] | None, *, messages: int = 0) -> bytes:
    return bodies.encode(bodies.ControlBody(dict(labels or {}), messages)) if labels or messages else b""
