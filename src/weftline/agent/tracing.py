"""Traces of an agent's runs for OpenTelemetry. Needs the extra `otel`.

from weftline.agent.tracing import trace

trace(agent)

The spans of a run are made from its log when it has ended: so they are whole, with the times at which things happened,
even if several processes have carried it out. Nothing is done before that, and nothing for an agent that is not traced.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_tracer_provider,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from weftline._version import __version__
from weftline.agent.context import RunInfo
from weftline.agent.definition import Definition
from weftline.agent.observing import FactsOf
from weftline.agent.spans import KINDS, Span, spans_of

_SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}


def trace(agent: Definition[Any, Any], *, tracer_provider: TracerProvider | None = None, content: bool = False) -> None:
    """Emits spans of the agent's runs from now on, and of the runs below them: run, turn, model call, tool call.

    A run whose metadata have a `traceparent` belongs to that span; others begin a trace. Said twice of an agent and a
    provider it is the same as once; what was said first about `content` holds.

    Args:
        agent: The agent; it stays as it is otherwise.
        tracer_provider: By default the one that is set for the process.
        content: Whether prompts, answers, arguments and results are in the spans.
    """
    if not any(isinstance(one, _Tracing) and one.provider is tracer_provider for one in agent.observers):
        agent.observers.append(_Tracing(tracer_provider, content=content))


class _Tracing:
    def __init__(self, provider: TracerProvider | None, *, content: bool) -> None:
        self.provider = provider
        self._content = content

    async def ended(self, run: RunInfo, facts_of: FactsOf) -> None:
        provider = self.provider or get_tracer_provider()
        tracer = provider.get_tracer("weftline", __version__, schema_url=_SCHEMA)
        parent = TraceContextTextMapPropagator().extract(_texts(run.metadata), Context())
        await _Emitting(tracer, facts_of, content=self._content).run(run.id, run.agent, parent)


def _texts(metadata: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in metadata.items() if isinstance(value, str)}


class _Emitting:
    """The spans of one run and of those below it."""

    def __init__(self, tracer: Tracer, facts_of: FactsOf, *, content: bool) -> None:
        self._tracer = tracer
        self._facts_of = facts_of
        self._content = content

    async def run(self, run_id: str, agent: str | None, parent: Context) -> None:
        found = spans_of(run_id, await self._facts_of(run_id, KINDS), agent=agent, content=self._content)
        if found is None:
            return
        await self._emit(found, parent, end_us=found.start_us if found.end_us is None else found.end_us)

    async def _emit(self, span: Span, parent: Context, *, end_us: int) -> None:
        """`end_us` is when a span ends that was cut off by the end of its run."""
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
