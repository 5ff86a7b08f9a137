"""Emits spans for a server's runs that no agent code executes, if its settings ask for that.

Code agents are traced with `weftline.agent.tracing.trace`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from weftline.agent.definition import Definition
from weftline.agent.engine.logs import facts_around
from weftline.errors import WeftlineError
from weftline.kernel.bodies import decode_created
from weftline.kernel.entries import KIND, RunCreated, decode_fact
from weftline.plan import agent_of, decode_content
from weftline.runtime.engine import Engine, EntryBatch
from weftline.work.outcomes import attempt

logger = logging.getLogger(__name__)


def trace_agents(agents: Iterable[Definition[Any, Any]]) -> None:
    """Traces code agents. Raises `WeftlineError` (`bad_config`) if the extra `otel` is not installed."""
    try:
        from weftline.agent.tracing import trace
    except ImportError:
        raise WeftlineError(
            "server.traces: this needs the extra otel: pip install '.[otel]' in a checkout of Weftline",
            code="bad_config",
            key="server.traces",
        ) from None
    for agent in agents:
        trace(agent)


class RunTraces:
    """Emits the spans of each run when it has ended. Requires a successful `trace_agents`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()
        self._leave = engine.observe(self._look)

    def _look(self, batch: EntryBatch) -> None:
        if batch.ended:
            task = asyncio.create_task(self._emit(batch.run_id, batch.key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _emit(self, run_id: str, key: int) -> None:
        from opentelemetry.trace import get_tracer_provider

        from weftline.agent.tracing import emit

        with attempt(logger, "run %s: its spans could not be emitted", run_id):
            facts_of = facts_around(self._engine, run_id, key)
            (created,) = await facts_of(run_id, (KIND[RunCreated],))
            head, stored = decode_fact.decode(created.head), decode_created(created.body).plan
            below = isinstance(head, RunCreated) and head.parent is not None
            if not below and decode_content(stored).code is None:
                await emit(run_id, agent_of(stored), facts_of, provider=get_tracer_provider())

    async def aclose(self) -> None:
        self._leave()
        await asyncio.gather(*self._tasks)
