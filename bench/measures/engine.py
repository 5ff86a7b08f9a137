"""The engine in process: a durable turn, what history adds to it, commits per run."""

from __future__ import annotations

import msgspec

from bench.embedded import Measured, Times
from bench.machine import Machine
from bench.processes import output_of
from bench.rows import Row


def engine(machine: Machine) -> list[Row]:
    with machine.folder() as folder:
        arguments = (str(folder), str(machine.model.port), str(machine.rounds(3)))
        found = msgspec.json.decode(output_of("bench.embedded", *arguments), type=Measured)
    commit_p50, commit_p99 = min(_p50(found.commit)), min(_p99(found.commit))
    note = "20 deltas; floor: one SQLite commit"
    return [
        Row("durable tool turn p50", "ms", "less", _p50(found.turn), floor=commit_p50, reach=0.4, note=note),
        Row("durable tool turn p99", "ms", "less", _p99(found.turn), floor=commit_p99, reach=1.0),
        Row("turn after 10 messages", "ms", "less", _p50(found.short), floor=commit_p50),
        Row("turn after 1,000 messages", "ms", "less", _p50(found.long), floor=commit_p50),
        Row("turn cost, history 1,000 / 10", "x", "less", _ratios(found.long, found.short), floor=1, reach=1.1),
        Row(
            "same, model over HTTP",
            "x",
            "less",
            _ratios(found.long_http, found.short_http),
            floor=1,
            note="about 0.2 MB more a request",
        ),
        Row("commits per one-tool run", "commits", "less", tuple(found.commits_per_run), floor=3, reach=3),
        Row("one-tool runs in process, c=64", "runs/s", "more", tuple(found.runs_per_s)),
    ]


def _p50(times: list[Times]) -> tuple[float, ...]:
    return tuple(one.p50_ms for one in times)


def _p99(times: list[Times]) -> tuple[float, ...]:
    return tuple(one.p99_ms for one in times)


def _ratios(over: list[Times], under: list[Times]) -> tuple[float, ...]:
    return tuple(a.p50_ms / b.p50_ms for a, b in zip(over, under, strict=True))
