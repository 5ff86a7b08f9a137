"""One workspace with thousands of runs and streams that nobody reads, or that posts large or endless runs without end:
what that does to another one's runs.

The other workspace's latency is taken before the flood and during it, on the same server, and the ratio is what counts.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
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
_FLOOD_S = 6.0
_MEGABYTE = 1_000_000


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
    return [*rows, *_under_posts(machine)]


def _under_posts(machine: Machine) -> list[Row]:
    """What another's run costs while clients of the flood create one run after another."""
    floods = (
        ("small runs", 8, workloads.body("scripted:empty")),
        ("tool lists of 1 MB", 4, workloads.body("scripted:empty", tools=_many_tools())),
        ("prompts of 1 MB", 8, workloads.body("scripted:empty", prompt="x" * _MEGABYTE)),
        ("loops of tool calls", 4, workloads.body("scripted:loop", tools=(workloads.SERVER_TOOL,))),
    )
    rows: list[Row] = []
    for what, clients, body in floods:
        rounds = [_while_posting(machine, body, clients=clients) for _ in range(machine.rounds(5))]
        times = tuple(during.took_p50_ms / before.took_p50_ms for before, during, _ in rounds)
        usual = median([before.took_p50_ms for before, _, _ in rounds])
        rate = median([flood.rate for _, _, flood in rounds])
        note = f"{clients} clients post {rate:.0f} runs/s; {usual:.1f} ms before"
        rows.append(Row(f"another's run, {what}", "x", "less", times, reach=MOST, note=note))
    return rows


def _while_posting(machine: Machine, body: str, *, clients: int) -> tuple[Round, Round, Round]:
    """Another's runs before the flood and during it, and the flood itself."""
    with machine.fresh_server() as server, ThreadPoolExecutor(1) as pool:
        key = server.process.create_key(_FLOOD)
        other = Job(
            port=server.port,
            key=server.key,
            body=workloads.body("scripted:empty"),
            clients=1,
            seconds=_FLOOD_S / 2,
            limit=100,
            rounds=1,
            pause_s=0.02,
            warm_up=20,
        )
        flood = Job(
            port=server.port,
            key=key,
            slug=_FLOOD,
            mode="post",
            body=body,
            clients=clients,
            rounds=1,
            seconds=_FLOOD_S,
        )
        [before] = load(other)
        posting = pool.submit(load, flood)
        time.sleep(_FLOOD_S / 4)
        [during] = load(msgspec.structs.replace(other, warm_up=0))
        return before, during, posting.result()[0]


def _many_tools() -> tuple[dict[str, object], ...]:
    """About a megabyte of tools of the client."""
    parameters = {f"p{number}": {"type": "string", "description": "x" * 60} for number in range(18)}
    schema = {"type": "object", "properties": parameters}
    one = {"kind": "local", "name": "t000", "description": "d" * 100, "parameters": schema}
    count = _MEGABYTE // (len(json.dumps(one, separators=(",", ":"))) + 1)
    return tuple([{**one, "name": f"t{number:03}"} for number in range(count)])


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
