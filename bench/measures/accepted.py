"""Accepting runs durably, apart from carrying them out.

More runs than the server carries out at once are begun first, and stay: what comes after them is accepted, committed
and put in line, and nothing else.
"""

from __future__ import annotations

from msgspec.structs import replace

from bench import workloads
from bench.load import Job
from bench.machine import Machine, load
from bench.rows import Row

PLACES = 2048
"""How many runs of one workspace are carried out at once."""


def accepted(machine: Machine) -> list[Row]:
    rows: list[Row] = []
    body = workloads.body("scripted:stuck")
    canned = machine.canned(machine.recorded(workloads.body("scripted:empty")))
    with canned as floor, machine.fresh_server() as server:
        load(Job(port=server.port, key=server.key, mode="post", body=body, limit=PLACES + 200, rounds=1, seconds=60))
        for clients, reach in ((1, None), (64, 8000), (256, None)):
            job = Job(port=server.port, key=server.key, mode="post", body=body, clients=clients, seconds=1.0)
            rounds = machine.rounds(3)
            real = load(replace(job, pid=server.pid, rounds=rounds))
            bare = load(replace(job, port=floor.port, rounds=machine.rounds(2), seconds=0.6))
            cpu_us = min(one.cpu_s / one.done for one in real) * 1e6
            rows.append(
                Row(
                    f"accepted durably, c={clients}",
                    "runs/s",
                    "more",
                    tuple(one.rate for one in real),
                    floor=max(one.rate for one in bare),
                    reach=reach,
                    note=f"p50 {min(one.took_p50_ms for one in real):.2f} ms, {cpu_us:.0f} us CPU",
                )
            )
    return rows
