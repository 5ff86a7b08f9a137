"""The trace that a run belongs to, in the words of W3C Trace Context. Nothing here needs OpenTelemetry.

The ids of a run's spans follow from its log: so a call knows that of its span before anybody has emitted it, in every
process that carries the run on, and whoever emits the spans gives them the same ids.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, cast

from msgspec import Struct

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_CHARS = 512

incoming_traceparent: ContextVar[str | None] = ContextVar("incoming_traceparent", default=None)
"""What a request to this server has said about its caller's span."""
call_traceparent: ContextVar[str | None] = ContextVar("call_traceparent", default=None)
"""What requests carry that are sent while a tool works."""


class Trace(Struct, frozen=True, forbid_unknown_fields=True):
    """Of a run; stored with it."""

    id: str
    """32 hexadecimal digits."""
    parent: str = ""
    """The span that the run's own is in, 16 digits; "" for a run that begins the trace."""
    sampled: bool = True
    spans: bool = True
    """Whether spans of the run are emitted. If not, its calls are taken for those of its caller."""

    def traceparent(self, span: str) -> str:
        return f"00-{self.id}-{span}-{'01' if self.sampled else '00'}"

    def of_call(self, run_id: str, turn: int, index: int) -> str:
        """What the requests of a call carry."""
        return self.traceparent(span_id(run_id, f"call.{turn}.{index}") if self.spans else self.parent)


def new_trace() -> Trace:
    return Trace(os.urandom(16).hex())


def fallback_trace(run_id: str) -> Trace:
    """Of a run that was begun where nobody traced it."""
    return Trace(sha256(run_id.encode()).hexdigest()[:32])


def span_id(run_id: str, what: str) -> str:
    """`what` is `run`, `turn.<turn>`, `chat.<turn>.<attempt>` or `call.<turn>.<index>`."""
    return sha256(f"{run_id} {what}".encode()).hexdigest()[:16]


def below(above: Trace | None, planned: Trace | None, *, run_id: str, turn: int, index: int) -> Trace | None:
    """The trace of a run that a call of the run `run_id` begins. `planned` is there if it is traced by itself."""
    if above is None:
        return planned
    if above.spans:
        return Trace(above.id, span_id(run_id, f"call.{turn}.{index}"), above.sampled)
    return Trace(above.id, above.parent, above.sampled, spans=planned is not None and planned.spans)


def parsed(traceparent: object) -> Trace | None:
    """The trace of a run whose caller has sent this; None if it is not one."""
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
    """The span of OpenTelemetry that is active in the code that calls this."""
    active = _active()
    return None if active is None else active.traceparent(active.parent)


def _active() -> Trace | None:
    api: Any = sys.modules.get("opentelemetry.trace")  # without it no span can be active
    if api is not None:
        active = api.get_current_span().get_span_context()
        if active.is_valid:
            return Trace(f"{active.trace_id:032x}", f"{active.span_id:016x}", bool(active.trace_flags & 1), spans=False)
    return None


def callers_trace() -> Trace | None:
    """That of the code that begins a run: the span that is active in it, or the one that its request has named."""
    return _active() or parsed(incoming_traceparent.get())


def inside_span(traceparent: str | None) -> AbstractContextManager[None]:
    """What is sent from here on belongs to this span, also by libraries that know only OpenTelemetry."""
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
    """The trace of a new run; None if nobody traces it. `planned` is there if its spans are emitted, and `metadata` is
    the `traceparent` among its metadata.
    """
    caller = parsed(metadata) or callers_trace()
    if planned is None or caller is None:
        return planned or caller
    return Trace(caller.id, caller.parent, caller.sampled)
