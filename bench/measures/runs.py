"""Whole runs over HTTP and SSE: created, followed to the terminal event, against the same bytes from a bare server."""

from __future__ import annotations

from msgspec.structs import replace

from bench import workloads
from bench.load import Job
from bench.machine import Machine, load
from bench.rows import Row

IDLE_PAUSE_S = 0.05


def scripted(machine: Machine) -> list[Row]:
    one = workloads.body("scripted:one", tools=(workloads.SERVER_TOOL,))
    ten = workloads.body("scripted:ten", tools=(workloads.SERVER_TOOL,))
    return [
        *_rows(machine, "runs, no tool", workloads.body("scripted:none"), {64: None}),
        *_rows(machine, "runs, one tool", one, {1: None, 16: None, 64: 2000, 256: None}),
        *_rows(machine, "runs, ten tool turns", ten, {64: None}),
    ]


def http_model(machine: Machine) -> list[Row]:
    body = workloads.body("fake:tool", tools=(workloads.SERVER_TOOL,))
    return _rows(machine, "runs, one tool, HTTP model", body, {1: None, 64: 1200})


def client_tool(machine: Machine) -> list[Row]:
    body = workloads.body("scripted:client", tools=(workloads.CLIENT_TOOL,))
    # A thousand streams at once, each with a call to answer: the measure fails when a single one is lost.
    return _rows(machine, "runs, client tool", body, {1: None, 64: 1200, 1000: None})


def first_event(machine: Machine) -> list[Row]:
    body = workloads.body("scripted:one", tools=(workloads.SERVER_TOOL,))
    server = machine.server
    job = Job(
        port=server.port,
        key=server.key,
        body=body,
        clients=1,
        seconds=60,
        limit=25,
        rounds=machine.rounds(4),
        pause_s=IDLE_PAUSE_S,
        warm_up=5,
    )
    real = load(job)
    once = load(replace(job, mode="once"))
    with machine.canned(machine.recorded(body)) as canned:
        bare = load(replace(job, port=canned.port, rounds=machine.rounds(2)))
    note = f"{IDLE_PAUSE_S * 1000:.0f} ms pauses; POST sent to first bytes of the stream"
    p50, p99 = tuple(one.first_p50_ms for one in real), tuple(one.first_p99_ms for one in real)
    floor_p50, floor_p99 = min(one.first_p50_ms for one in bare), min(one.first_p99_ms for one in bare)
    return [
        Row("first event, idle, p50", "ms", "less", p50, floor=floor_p50, reach=3, note=note),
        Row("first event, idle, p99", "ms", "less", p99, floor=floor_p99),
        Row(
            "first event, one request, idle, p50",
            "ms",
            "less",
            tuple(one.first_p50_ms for one in once),
            floor=floor_p50,
            note="a POST that accepts events; floor: two requests",
        ),
    ]


def _rows(machine: Machine, name: str, body: str, clients: dict[int, float | None]) -> list[Row]:
    server = machine.server
    rows: list[Row] = []
    with machine.canned(machine.recorded(body)) as canned:
        for count, reach in clients.items():
            job = Job(port=server.port, key=server.key, body=body, clients=count, warm_up=2 * count, pid=server.pid)
            real = load(replace(job, rounds=machine.rounds(3), seconds=1.2))
            bare = load(replace(job, port=canned.port, pid=0, rounds=machine.rounds(2), seconds=0.5))
            cpu_us = min(one.cpu_s / one.done for one in real) * 1e6
            p50, p99 = min(one.took_p50_ms for one in real), min(one.took_p99_ms for one in real)
            rows.append(
                Row(
                    f"{name}, c={count}",
                    "runs/s",
                    "more",
                    tuple(one.rate for one in real),
                    floor=max(one.rate for one in bare),
                    reach=reach,
                    note=f"p50 {p50:.3g} ms, p99 {p99:.3g} ms, {cpu_us:.0f} us CPU",
                )
            )
    return rows
