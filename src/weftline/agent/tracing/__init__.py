"""Traces of an agent's runs for OpenTelemetry. Needs the extra `otel`.

from weftline.agent.tracing import trace

trace(agent)

The spans of a run are built from its log when it has ended. So they are complete and have the actual times, even if
several processes executed the run. Nothing is done before that, and nothing for an agent that is not traced.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    get_tracer_provider,
    set_span_in_context,
)

from weftline._version import __version__
from weftline.agent.context import RunInfo
from weftline.agent.definition import Definition
from weftline.agent.engine.observing import FactsOf
from weftline.agent.tracing.spans import KINDS, Span, spans_of
from weftline.kernel.bodies import decode_created
from weftline.plan import decode_content
from weftline.trace_context import Trace, fallback_trace

_SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}


def trace(agent: Definition[Any, Any], *, tracer_provider: TracerProvider | None = None, content: bool = False) -> None:
    """Emits spans for the agent's runs from now on, and for the runs below them: run, turn, model call, tool call.

    A run's parent is the span that is active where the run starts, or the one in the `traceparent` of its request;
    otherwise it begins a trace. Repeating this for the same agent and provider has no effect; the first `content`
    applies.

    Args:
        agent: The agent, which is not changed otherwise.
        tracer_provider: By default the one that is set for the process.
        content: Whether spans include prompts, answers, arguments and results.
    """
    if not any(isinstance(one, _Tracing) and one.provider is tracer_provider for one in agent.observers):
        agent.observers.append(_Tracing(tracer_provider, content=content))


class _Tracing:
    traces = True

    def __init__(self, provider: TracerProvider | None, *, content: bool) -> None:
        self.provider = provider
        self._content = content

    async def ended(self, run: RunInfo, facts_of: FactsOf) -> None:
        provider = self.provider or get_tracer_provider()
        await emit(run.id, run.agent, facts_of, provider=provider, content=self._content)


async def emit(
    run_id: str, agent: str | None, facts_of: FactsOf, *, provider: TracerProvider, content: bool = False
) -> None:
    """Emits the spans of a run that has ended, and of the runs below it."""
    tracer: Any = provider.get_tracer("weftline", __version__, schema_url=_SCHEMA)
    given = _GivenIds()
    if hasattr(tracer, "id_generator"):  # other tracers choose their own ids
        tracer.id_generator = given
    await _Emitting(tracer, given, facts_of, content=content).run(run_id, agent, None)


class _GivenIds:
    """Gives the SDK the ids that follow from the log, which calls have already sent; its own would differ."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id

    def is_trace_id_random(self) -> bool:
        return False


class _Emitting:
    """Emits the spans of one run and the runs below it."""

    def __init__(self, tracer: Tracer, given: _GivenIds, facts_of: FactsOf, *, content: bool) -> None:
        self._tracer = tracer
        self._given = given
        self._facts_of = facts_of
        self._content = content

    async def run(self, run_id: str, agent: str | None, parent: Context | None) -> None:
        """Emits a run; `parent` is the span of its call, for a child run."""
        facts = await self._facts_of(run_id, KINDS)
        found = spans_of(run_id, facts, agent=agent, content=self._content)
        if found is None:
            return
        if parent is None:
            parent = self._begin(decode_content(decode_created(facts[0].body).plan).trace or fallback_trace(run_id))
        await self._emit(found, parent, end_us=found.start_us if found.end_us is None else found.end_us)

    def _begin(self, trace: Trace) -> Context:
        self._given.trace_id = int(trace.id, 16)
        if not trace.parent:
            return Context()
        flags = TraceFlags(TraceFlags.SAMPLED if trace.sampled else TraceFlags.DEFAULT)
        above = SpanContext(self._given.trace_id, int(trace.parent, 16), is_remote=True, trace_flags=flags)
        return set_span_in_context(NonRecordingSpan(above), Context())

    async def _emit(self, span: Span, parent: Context, *, end_us: int) -> None:
        """Emits a span; `end_us` is the end of one that the end of its run cut off."""
        self._given.span_id = int(span.id, 16)
        emitted = self._tracer.start_span(
            span.name, parent, _KINDS[span.kind], attributes=span.attributes, start_time=span.start_us * 1000
        )
        here = set_span_in_context(emitted, parent)
        for one in span.inside:
            await self._emit(one, here, end_us=end_us)
        if span.child_id:
            await self.run(span.child_id, str(span.attributes["gen_ai.tool.name"]), here)
        if span.error is not None:
            emitted.set_attribute("error.type", span.error)
            emitted.set_status(Status(StatusCode.ERROR, span.error))
        emitted.end((end_us if span.end_us is None else span.end_us) * 1000)
