"""One run, a thousand readers: events delivered per second, and memory per reader."""

from __future__ import annotations

import http.client
from pathlib import Path

import msgspec

from bench import workloads
from bench.machine import Machine, create, post
from bench.processes import Child, settled_kb
from bench.rows import Row
from bench.subscribers import Delivered

FIRST, MORE = 100, 900
"""The first readers grow what every reader shares, so that the rest shows what one costs."""


def fan_out(machine: Machine) -> list[Row]:
    rates: list[float] = []
    sizes: list[float] = []
    for _ in range(machine.rounds(3)):
        rate, size = _real(machine)
        rates.append(rate)
        sizes.append(size)
    with machine.folder() as folder:
        file = folder / "frames"
        file.write_bytes(machine.recorded(_body()).stream)
        floor_rate, floor_size = _floor(file)
    asked = 1000 * (FIRST + MORE) / workloads.TICK_MS
    note = f"{FIRST + MORE:,} readers, {asked:,.0f} asked for; floor: transport writes"
    return [
        Row("SSE events delivered", "events/s", "more", tuple(rates), floor=floor_rate, reach=50_000, note=note),
        Row("memory per reader", "KB", "less", tuple(sizes), floor=floor_size, reach=10),
    ]


def _body() -> str:
    return workloads.body("scripted:ticks", tools=(workloads.CLIENT_TOOL,))


def _real(machine: Machine) -> tuple[float, float]:
    with machine.fresh_server() as server:
        _, path = create(server, _body())
        with _readers(server.port, f"{path}/stream", server.key) as readers:
            size_kb = _attach(readers, server.pid)
            answer = {"toolUseId": "call_0_0", "result": "go"}
            post(server, f"{path}/tool-results", msgspec.json.encode(answer).decode())
            return _delivered(readers), size_kb


def _floor(file: Path) -> tuple[float, float]:
    with (
        Child("bench.broadcast", str(file), str(workloads.TICK_MS)) as server,
        _readers(server.port, "/stream", "none") as readers,
    ):
        size_kb = _attach(readers, server.pid)
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/go")
        connection.getresponse().read()
        connection.close()
        return _delivered(readers), size_kb


def _readers(port: int, path: str, key: str) -> Child:
    return Child("bench.subscribers", str(port), path, key, str(FIRST), str(MORE))


def _attach(readers: Child, pid: int) -> float:
    """Lets the readers attach; returns what each of the later ones added to the server's memory."""
    _expect_attached(readers)
    before = settled_kb(pid)
    readers.go()
    _expect_attached(readers)
    after = settled_kb(pid)
    readers.go()
    return (after - before) / MORE


def _expect_attached(readers: Child) -> None:
    if (line := readers.line()) != "attached":
        raise RuntimeError(f"the readers could not attach: {line!r}")


def _delivered(readers: Child) -> float:
    found = msgspec.json.decode(readers.line(), type=Delivered)
    if found.events < workloads.TICKS * (FIRST + MORE):
        raise RuntimeError(f"only {found.events} events were delivered")
    return found.events / found.seconds
