"""`/metrics`: what the server does, in Prometheus' text form, and who may read it.

The numbers are those of all workspaces together, so a workspace's credentials do not open this page: its operator's
token does. A server that only its own machine can reach shows it without one.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from weftline._version import __version__
from weftline.errors import Forbidden, Unauthorized
from weftline.kernel.policy import PARTS
from weftline.runtime.engine import Engine
from weftline.runtime.metrics import Histogram, Measured
from weftline.store.rows import RunFilter

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_UNFINISHED = ("queued", "running", "paused")
_QUICK_S, _SHARE = 0.1, 100
"""Counting the unfinished runs takes seconds in a large store: unless it was quick, it is repeated only after so many
times as long.
"""


class MetricsPage:
    def __init__(self, engine: Engine, *, folder: Path | None, local: bool, token: str) -> None:
        """`folder` is the directory of the store. Without a `token`, only a `local` server shows the page."""
        self._engine = engine
        self._folder = folder
        self._local = local
        self._token = token
        self._unfinished: Mapping[str, int] = {}
        self._count_again_s = 0.0
        self._started_s = time.time()

    def check(self, credential: str | None) -> None:
        """Raises `Unauthorized` or `Forbidden` unless whoever sends this credential may read the page."""
        if self._token:
            if credential is None or not hmac.compare_digest(credential.encode(), self._token.encode()):
                raise Unauthorized(
                    "This needs the token of metrics_token, as Authorization: Bearer …",
                    invalid_token=credential is not None,
                )
        elif not self._local:
            raise Forbidden(
                "Metrics of a server that others can reach are shown only to those who have its token.",
                hint="Set metrics_token in its configuration, or WEFTLINE_METRICS_TOKEN.",
            )

    async def text(self) -> bytes:
        unfinished = await self._count_unfinished()
        lines = [*self._lines(self._engine.measure(), unfinished), ""]
        return "\n".join(lines).encode()

    async def _count_unfinished(self) -> Mapping[str, int]:
        """The runs that have not ended, by status: from the store, as most of them may not be in memory."""
        began_s = time.monotonic()
        if began_s >= self._count_again_s:
            count = self._engine.stored.logs.count_runs
            self._unfinished = {status: await count(RunFilter(statuses=(status,))) for status in _UNFINISHED}
            took_s = time.monotonic() - began_s
            if took_s > _QUICK_S:
                self._count_again_s = began_s + _SHARE * took_s
        return self._unfinished

    def _lines(self, measured: Measured, unfinished: Mapping[str, int]) -> Iterator[str]:
        counts = measured.metrics
        parked = max(0, sum(unfinished.values()) - measured.active - measured.waiting)
        usage = counts.usage
        yield from _family("weftline_info", "gauge", "The version of the server.", {f'version="{__version__}"': 1})
        yield from _family(
            "process_start_time_seconds", "gauge", "When the process started, in Unix time.", self._started_s
        )
        yield from _counter("runs_created", "Runs created since the start.", counts.runs_created)
        yield from _counter("runs_ended", "Runs ended since the start.", _by("status", counts.runs_ended))
        yield from _gauge("runs_unfinished", "Runs that have not ended, in the store.", _by("status", unfinished))
        yield from _gauge("runs_active", "Runs being driven now.", measured.active)
        yield from _gauge(
            "runs_waiting", "Runs waiting for a slot, or for earlier runs of their session.", measured.waiting
        )
        yield from _gauge("runs_parked", "Runs waiting for a client, a person or a time.", parked)
        yield from _histogram("run_duration", "From the first model call of a run to its end.", counts.run_s)
        yield from _counter("turns", "Turns that a model has completed.", counts.turns)
        yield from _counter("model_calls", "Model calls that have ended.", _by("outcome", counts.model_calls))
        yield from _histogram("model_call_duration", "How long completed model calls took.", counts.model_s)
        tokens = {
            "input": usage.input - usage.cached - usage.cache_write,
            "cache_read": usage.cached,
            "cache_write": usage.cache_write,
            "output": usage.output - usage.reasoning,
            "reasoning": usage.reasoning,
        }
        yield from _counter("tokens", "Tokens that models have used; the kinds do not overlap.", _by("kind", tokens))
        yield from _counter(
            "cost_usd", "What model calls with a known price have cost.", counts.cost_nusd / PARTS["usd"]
        )
        yield from _counter("tool_calls", "Tool calls that have ended.", _by("outcome", counts.tool_calls))
        yield from _histogram("tool_call_duration", "How long calls that this server executed took.", counts.tool_s)
        yield from _gauge("streams_open", "Event streams that are open.", measured.streams)
        yield from _histogram("store_flush_duration", "How long commits of the log took.", counts.flush_s)
        yield from _counter("store_written_bytes", "Bytes of entries that were committed.", counts.written_bytes)
        yield from _gauge("store_writable", "1 while the store accepts writes, else 0.", int(measured.writable))
        if self._folder is not None:
            sizes = {"database": _size(self._folder / "weftline.db"), "wal": _size(self._folder / "weftline.db-wal")}
            yield from _gauge("store_bytes", "Size of the store's files.", _by("file", sizes))


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _by(label: str, values: Mapping[str, float]) -> Mapping[str, float]:
    return {f'{label}="{name}"': value for name, value in values.items()}


def _counter(name: str, about: str, value: float | Mapping[str, float]) -> Iterator[str]:
    return _family(f"weftline_{name}_total", "counter", about, value)


def _gauge(name: str, about: str, value: float | Mapping[str, float]) -> Iterator[str]:
    return _family(f"weftline_{name}", "gauge", about, value)


def _family(name: str, kind: str, about: str, value: float | Mapping[str, float]) -> Iterator[str]:
    """The lines of a metric with one value, or with one for each set of labels."""
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    if isinstance(value, Mapping):
        for labels, each in value.items():
            yield f"{name}{{{labels}}} {each!r}"
    else:
        yield f"{name} {value!r}"


def _histogram(name: str, about: str, histogram: Histogram) -> Iterator[str]:
    name = f"weftline_{name}_seconds"
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} histogram"
    total = 0
    for bound, count in zip((*histogram.bounds_s, "+Inf"), histogram.counts, strict=True):
        total += count
        yield f'{name}_bucket{{le="{bound}"}} {total}'
    yield f"{name}_sum {histogram.total_s!r}"
    yield f"{name}_count {total}"
