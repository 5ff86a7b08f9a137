"""A thousand readers of long logs who take nothing: what they cost, and that they still get all of their log."""

from __future__ import annotations

import msgspec

from bench import workloads
from bench.machine import Machine, Server, create, follow
from bench.processes import Child, settled_kb
from bench.rows import Row

READERS = 1000
MAX_MB = 100


def slow_readers(machine: Machine) -> list[Row]:
    rows: list[Row] = []
    for script, what in (("tiny", "10 MB of short deltas"), ("large", "10 MB in a few events")):
        with machine.fresh_server() as server:
            _, path = create(server, workloads.body(f"scripted:{script}"))
            size = len(follow(server, path))
            grown = _grown_mb(server, f"{path}/stream", size)
        note = f"{READERS:,} readers, {what}; some of them read to the end afterwards"
        rows.append(Row(f"readers who do not read, {script}", "MB", "less", (grown,), reach=MAX_MB, note=note))
    return rows


def _grown_mb(server: Server, path: str, size: int) -> float:
    before = settled_kb(server.pid)
    with Child("bench.stuck", str(server.port), server.key, str(READERS), path) as readers:
        if (line := readers.line()) != "attached":
            raise RuntimeError(f"the readers could not attach: {line!r}")
        grown = settled_kb(server.pid) - before
        readers.go()
        sizes = msgspec.json.decode(readers.line(), type=list[int])
    if not sizes or min(sizes) < size:
        raise RuntimeError("a reader did not get its whole log")
    return grown / 1024
