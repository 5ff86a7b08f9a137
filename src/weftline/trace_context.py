"""What a log line and a trace say about where they come from."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Protocol, cast

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


_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_CHARS = 512

incoming_traceparent: ContextVar[str | None] = ContextVar("incoming_traceparent", default=None)
"""The caller's span, from a request to this server."""
call_traceparent: ContextVar[str | None] = ContextVar("call_traceparent", default=None)
"""The span that requests carry while a tool works."""


class Trace(Struct, frozen=True, forbid_unknown_fields=True):
    """The trace of a run, stored with it."""

    id: str
    """32 hexadecimal digits."""
    parent: str = ""
    """The span that contains the run's own, 16 digits; empty for a run that begins the trace."""
    sampled: bool = True
    spans: bool = True
    """Whether spans of the run are emitted. If not, its calls count as its caller's."""

    def traceparent(self, span: str) -> str:
        return f"00-{self.id}-{span}-{'01' if self.sampled else '00'}"

    def of_call(self, run_id: str, turn: int, index: int) -> str:
        """Returns the traceparent for the requests of a call."""
        return self.traceparent(span_id(run_id, f"call.{turn}.{index}") if self.spans else self.parent)


def new_trace() -> Trace:
    return Trace(os.urandom(16).hex())


def fallback_trace(run_id: str) -> Trace:
    """Returns the trace of a run that was started where nothing was traced."""
    return Trace(sha256(run_id.encode()).hexdigest()[:32])


def span_id(run_id: str, what: str) -> str:
    """Returns a span id; `what` is `run`, `turn.<turn>`, `chat.<turn>.<attempt>` or `call.<turn>.<index>`."""
    return sha256(f"{run_id} {what}".encode()).hexdigest()[:16]


def below(above: Trace | None, planned: Trace | None, *, run_id: str, turn: int, index: int) -> Trace | None:
    """Returns the trace of a run that a call of the run `run_id` begins. `planned` is set if it is traced itself."""
    if above is None:
        return planned
    if above.spans:
        return Trace(above.id, span_id(run_id, f"call.{turn}.{index}"), above.sampled)
    return Trace(above.id, above.parent, above.sampled, spans=planned is not None and planned.spans)


def parsed(traceparent: object) -> Trace | None:
    """Returns the trace of a run whose caller sent this traceparent; None if it is invalid."""
    if not isinstance(traceparent, str) or len(traceparent) > _MAX_CHARS:
        return None
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    if found is None:
        return None
    version, trace, parent, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not trace.strip("0") or not parent.strip("0"):
        return None
    return Trace(trace, parent, bool(int(flags, 16) & 1), spans=False)


def active_traceparent() -> str | None:
    """Returns the OpenTelemetry span that is active in the calling code."""
    active = _active()
    return None if active is None else active.traceparent(active.parent)


def _active() -> Trace | None:
    api: Any = sys.modules.get("opentelemetry.trace")  # without it, no span can be active
    if api is not None:
        active = api.get_current_span().get_span_context()
        if active.is_valid:
            return Trace(f"{active.trace_id:032x}", f"{active.span_id:016x}", bool(active.trace_flags & 1), spans=False)
    return None


def callers_trace() -> Trace | None:
    """Returns the trace of the code that starts a run: its active span, or the one in its request."""
    active, incoming = _active(), incoming_traceparent.get()
    return active if active is not None or incoming is None else parsed(incoming)


def inside_span(traceparent: str | None) -> AbstractContextManager[None]:
    """Makes what is sent inside belong to this span, even by libraries that only know OpenTelemetry."""
    return _NO_SPAN if traceparent is None and call_traceparent.get() is None else _inside(traceparent)


_NO_SPAN = nullcontext()


@contextmanager
def _inside(traceparent: str | None) -> Generator[None]:
    token = call_traceparent.set(traceparent)
    given, api = parsed(traceparent), cast("Any", sys.modules.get("opentelemetry.trace"))
    active: Any = None
    if given is not None and api is not None:
        from opentelemetry import context

        flags = api.TraceFlags(int(given.sampled))
        span = api.SpanContext(int(given.id, 16), int(given.parent, 16), is_remote=False, trace_flags=flags)
        active = context.attach(api.set_span_in_context(api.NonRecordingSpan(span)))
    try:
        yield
    finally:
        if active is not None:
            from opentelemetry import context

            context.detach(active)
        call_traceparent.reset(token)


def trace_for(planned: Trace | None, *, metadata: object = None) -> Trace | None:
    """Returns the trace of a new run; None if it is not traced.

    `planned` is set if its spans are emitted, and `metadata` is the `traceparent` in its metadata.
    """
    caller = (None if metadata is None else parsed(metadata)) or callers_trace()
    if planned is None or caller is None:
        return planned or caller
    return Trace(caller.id, caller.parent, caller.sampled)
