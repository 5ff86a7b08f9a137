"""Runs that wait for a client: what each of them holds in the server's memory."""

from __future__ import annotations

from bench import workloads
from bench.load import Job
from bench.machine import Machine, Server, load
from bench.measures.database import wait_for_count
from bench.processes import memory_kb
from bench.rows import Row

BATCH = 5_000
"""The first batch fills caches and pools; the ten thousand after it show what a run costs."""


def parked(machine: Machine) -> list[Row]:
    with machine.fresh_server() as server:
        _park(server, upto=BATCH)
        before = memory_kb(server.pid)
        sizes: list[float] = []
        for batch in (2, 3):
            _park(server, upto=batch * BATCH)
            after = memory_kb(server.pid)
            sizes.append((after - before) / BATCH)
            before = after
    # Pages that the process gives back in between show as less than nothing.
    mean = sum(sizes) / len(sizes)
    note = f"private memory; by batch of {BATCH:,}: " + ", ".join(f"{size:.3f}" for size in sizes)
    return [Row("parked run, 10,000 of them", "KB", "less", (max(mean, 0.0),), floor=0, reach=0.1, note=note)]


def _park(server: Server, *, upto: int) -> None:
    body = workloads.body("scripted:client", tools=(workloads.CLIENT_TOOL,))
    load(Job(port=server.port, key=server.key, mode="post", body=body, limit=BATCH, rounds=1, seconds=60))
    wait_for_count(server, "SELECT count(*) FROM runs WHERE due_at > 0", upto)
