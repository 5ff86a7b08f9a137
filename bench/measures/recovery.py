"""SIGKILL with a thousand runs in the middle of an answer: when it accepts again, and when all of them move."""

from __future__ import annotations

import time

from bench import workloads
from bench.load import Job
from bench.machine import Machine, load
from bench.measures.database import wait_for_count
from bench.measures.startup import LIBRARIES, process_ms
from bench.rows import Row

UNFINISHED = 1_000
_BEGUN = "SELECT count(*) FROM entries WHERE kind = 'attempt.started'"


def recovery(machine: Machine) -> list[Row]:
    accepting: list[float] = []
    moving: list[float] = []
    for _ in range(machine.rounds(3)):
        with machine.fresh_server("stuck") as server:
            body = workloads.body("scripted:stuck")
            load(Job(port=server.port, key=server.key, mode="post", body=body, limit=UNFINISHED, rounds=1, seconds=60))
            wait_for_count(server, _BEGUN, UNFINISHED)
            server.process.kill()
            begun = time.perf_counter()
            server.process.start()
            accepting.append(time.perf_counter() - begun)
            moving.append(wait_for_count(server, _BEGUN, 2 * UNFINISHED) - begun)
    floor = min(process_ms(LIBRARIES, 3)) / 1000
    note = "1,000 unfinished runs; floor: python + libraries"
    return [
        Row("after SIGKILL, accepting", "s", "less", tuple(accepting), floor=floor, reach=0.5, note=note),
        Row(
            "after SIGKILL, all moving", "s", "less", tuple(moving), floor=floor, reach=1.0, note="each has begun anew"
        ),
    ]
