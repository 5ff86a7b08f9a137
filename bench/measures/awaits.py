"""Runs that wait for a person: the memory of each, and the time to find one, to answer it, and to start with all."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

from bench import workloads
from bench.load import Job
from bench.machine import Machine, Server, load
from bench.measures.database import wait_for_count
from bench.processes import memory_kb
from bench.rows import Row

FIRST = 5_000
"""They fill caches and pools; those after them show what one costs."""
MANY = 100_000
ANSWERS = 50
_PATH = f"/api/v1/workspaces/{workloads.WORKSPACE}"


def awaits(machine: Machine) -> list[Row]:
    with machine.fresh_server() as server:
        _ask(server, FIRST, upto=FIRST)
        few_ms = _page_ms(server)
        before = memory_kb(server.pid)
        _ask(server, MANY, upto=FIRST + MANY)
        size = max((memory_kb(server.pid) - before) / MANY, 0.0)
        many_ms = _page_ms(server)
        answered_ms = _answered_ms(server)
        server.process.kill()
        begun = time.perf_counter()
        server.process.start()
        started_s = time.perf_counter() - begun
    note = f"{MANY:,} runs that wait for an approval"
    return [
        Row("await, parked", "KB", "less", (size,), floor=0, reach=0.1, note=note),
        Row("page of the inbox", "ms", "less", many_ms, floor=min(few_ms), note=f"200 of them; floor: of {FIRST:,}"),
        Row("await, answered", "ms", "less", answered_ms, note="until the approval is durable"),
        Row("start after SIGKILL with them", "s", "less", (started_s,), reach=1.0, note=note),
    ]


def _ask(server: Server, count: int, *, upto: int) -> None:
    body = workloads.body("scripted:person", tools=(workloads.ASKING_TOOL,))
    load(Job(port=server.port, key=server.key, mode="post", body=body, limit=count, rounds=1, seconds=600))
    wait_for_count(server, "SELECT count(*) FROM open_awaits", upto, timeout_s=600)


def _page_ms(server: Server) -> tuple[float, ...]:
    return tuple([_timed_ms(server, "GET", "/awaits?limit=200")[0] for _ in range(20)])


def _answered_ms(server: Server) -> tuple[float, ...]:
    _, found = _timed_ms(server, "GET", f"/awaits?limit={ANSWERS}")
    answer = json.dumps({"outcome": "approved"})
    took: list[float] = []
    for one in found["awaits"]:
        ms, told = _timed_ms(server, "POST", f"/agent-runs/{one['runId']}/awaits/{one['id']}", answer)
        assert told["ok"], told
        took.append(ms)
    return tuple(took)


def _timed_ms(server: Server, method: str, path: str, body: str | None = None) -> tuple[float, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
        begun = time.perf_counter()
        connection.request(method, _PATH + path, body, headers)
        answer = connection.getresponse().read()
        return (time.perf_counter() - begun) * 1000, json.loads(answer)
    finally:
        connection.close()
