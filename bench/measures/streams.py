"""Streaming: what one delta costs, and many slow streams at once."""

from __future__ import annotations

from msgspec.structs import replace

from bench import workloads
from bench.load import Job
from bench.machine import Machine, load
from bench.rows import Row

STREAMS = 500


def delta(machine: Machine) -> list[Row]:
    """Server CPU of a run with many deltas, less that of a run with one."""
    many, few = workloads.body("scripted:many"), workloads.body("scripted:empty")
    server = machine.server
    job = Job(port=server.port, key=server.key, clients=16, rounds=1, seconds=1.0, warm_up=32, pid=server.pid)
    costs = [_cpu_us(replace(job, body=many)) - _cpu_us(replace(job, body=few)) for _ in range(machine.rounds(3))]
    with machine.canned(machine.recorded(many)) as canned:
        bare_many = _cpu_us(replace(job, body=many, port=canned.port, pid=canned.pid))
    with machine.canned(machine.recorded(few)) as canned:
        bare_few = _cpu_us(replace(job, body=few, port=canned.port, pid=canned.pid))
    deltas = workloads.MANY_DELTAS - 1
    return [
        Row(
            "streamed delta, all at once",
            "us CPU",
            "less",
            tuple(cost / deltas for cost in costs),
            floor=max(0.0, bare_many - bare_few) / deltas,
            note="made durable, framed, sent; floor: sent",
        )
    ]


def _cpu_us(job: Job) -> float:
    (one,) = load(job)
    return one.cpu_s / one.done * 1e6


def many_streams(machine: Machine) -> list[Row]:
    server = machine.server
    rows: list[Row] = []
    chunks = STREAMS * workloads.STREAM_CHUNKS
    floor = 0.0
    for name, model, reach in (
        ("500 streams x 50 chunks, HTTP model", "fake:paced", 1.4),
        ("500 streams x 50 chunks, scripted", "scripted:paced", None),
    ):
        body = workloads.body(model)
        job = Job(
            port=server.port,
            key=server.key,
            body=body,
            clients=STREAMS,
            limit=STREAMS,
            seconds=60,
            rounds=machine.rounds(3),
            pid=server.pid,
        )
        real = load(job)
        if not floor:
            with machine.canned(machine.recorded(body), pace_ms=workloads.STREAM_PACE_MS) as canned:
                bare = load(replace(job, port=canned.port, pid=0, rounds=machine.rounds(2)))
            floor = min(one.seconds for one in bare)
        cpu_us = min(one.cpu_s for one in real) / chunks * 1e6
        note = (
            f"20 ms apart; first event p50 {min(one.first_p50_ms for one in real):.0f} ms, {cpu_us:.0f} us CPU a chunk"
        )
        rows.append(Row(name, "s", "less", tuple(one.seconds for one in real), floor=floor, reach=reach, note=note))
    return rows
