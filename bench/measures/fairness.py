"""One workspace with thousands of runs and streams that nobody reads: what that does to another one's runs.

The other workspace's latency is taken before the flood and during it, on the same server, and the ratio is what counts.
"""

from __future__ import annotations

from statistics import median

import msgspec

from bench import workloads
from bench.load import Job, Round
from bench.machine import Machine, Server, get, load
from bench.processes import Child
from bench.rows import Row

RUNS, STREAMS = 2000, 1500
MOST = 2.0
_FLOOD = "flood"


def fairness(machine: Machine) -> list[Row]:
    rows: list[Row] = []
    for script, what in (
        ("stuck", "waiting for their model"),
        ("drip", "streaming two deltas a second each"),
        ("loop", "calling a tool in a loop, as fast as they get"),
    ):
        before, during = _before_and_during(machine, script)
        usual = median([one.took_p50_ms for one in before])
        times = tuple(one.took_p50_ms / usual for one in during)
        p99 = median([one.took_p99_ms for one in during]) / median([one.took_p99_ms for one in before])
        note = f"{RUNS:,} runs {what}, {STREAMS:,} streams unread; {usual:.1f} ms before; p99 x {p99:.1f}"
        rows.append(Row(f"another's run, {script}", "x", "less", times, reach=MOST, note=note))
    return rows


def _before_and_during(machine: Machine, script: str) -> tuple[list[Round], list[Round]]:
    with machine.fresh_server() as server:
        body = workloads.body("scripted:one", tools=(workloads.SERVER_TOOL,))
        job = Job(
            port=server.port,
            key=server.key,
            body=body,
            clients=1,
            seconds=60,
            limit=100,
            rounds=machine.rounds(3),
            pause_s=0.02,
            warm_up=20,
        )
        before = load(job)
        key = server.process.create_key(_FLOOD)
        paths = _begin(server, key, script)
        with Child("bench.stuck", str(server.port), key, str(STREAMS), *paths) as readers:
            if (line := readers.line()) != "attached":
                raise RuntimeError(f"the readers could not attach: {line!r}")
            return before, load(job)


def _begin(server: Server, key: str, script: str) -> list[str]:
    """Begins the flood's runs; returns the paths of their streams."""
    base = f"/api/v1/workspaces/{_FLOOD}/agent-runs"
    tools = (workloads.SERVER_TOOL,) if script == "loop" else ()
    body = workloads.body(f"scripted:{script}", tools=tools)
    load(
        Job(
            port=server.port,
            key=key,
            slug=_FLOOD,
            mode="post",
            body=body,
            clients=16,
            limit=RUNS,
            rounds=1,
            seconds=120,
        )
    )
    listed = get(server, f"{base}?limit=200", key=key)
    return [f"{base}/{run['id']}/stream" for run in msgspec.json.decode(listed)["runs"]]
