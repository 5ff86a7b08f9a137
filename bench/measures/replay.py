"""A reader that comes late: the whole log of a long run, from the store."""

from __future__ import annotations

from msgspec.structs import replace

from bench import workloads
from bench.load import Job
from bench.machine import Machine, Recorded, load, record
from bench.rows import Row


def replay(machine: Machine) -> list[Row]:
    server = machine.server
    recorded: Recorded = record(server, workloads.body("scripted:long"))
    path = recorded.created.partition(b'"streamUrl":"')[2].partition(b'"')[0].decode()
    job = Job(
        port=server.port,
        key=server.key,
        mode="get",
        path=path,
        clients=1,
        limit=10,
        seconds=60,
        rounds=machine.rounds(4),
        warm_up=2,
    )
    real = load(job)
    with machine.canned(recorded) as canned:
        bare = load(replace(job, port=canned.port))
    took = tuple(one.took_p50_ms for one in real)
    floor = min(one.took_p50_ms for one in bare)
    size_mb = len(recorded.stream) / 1e6
    note = f"{workloads.REPLAY_EVENTS:,} deltas, {size_mb:.1f} MB"
    return [Row("replay of 10,000 events", "ms", "less", took, floor=floor, reach=20, note=note)]
