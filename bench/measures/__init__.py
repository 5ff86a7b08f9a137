"""Every measure by name. A measure takes the machine and returns its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from bench.machine import Machine
from bench.measures import (
    accepted,
    awaits,
    budgets,
    engine,
    fairness,
    families,
    fan_out,
    library,
    parked,
    recovery,
    replay,
    replaying,
    runs,
    sandbox,
    slow_readers,
    startup,
    stored,
    streams,
)
from bench.rows import Row

Measure: TypeAlias = Callable[[Machine], list[Row]]

MEASURES: Mapping[str, Measure] = {
    "import": startup.imports,
    "ready": startup.ready,
    "engine": engine.engine,
    "library": library.library,
    "accepted": accepted.accepted,
    "runs": runs.scripted,
    "http-model": runs.http_model,
    "client-tool": runs.client_tool,
    "first-event": runs.first_event,
    "delta": streams.delta,
    "streams": streams.many_streams,
    "families": families.recorded,
    "fan-out": fan_out.fan_out,
    "fairness": fairness.fairness,
    "slow-readers": slow_readers.slow_readers,
    "parked": parked.parked,
    "awaits": awaits.awaits,
    "budgets": budgets.budgets,
    "recovery": recovery.recovery,
    "replay": replay.replay,
    "sandbox": sandbox.sandbox,
    "replay-run": replaying.replay_a_run,
    "stored": stored.stored,
}
