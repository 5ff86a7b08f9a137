"""`python -m bench.compare OTHER [NAME …]`: this checkout against another one, in turn on the same machine.

OTHER is a checkout with its own `.venv`, such as a work tree of an earlier commit. Two measures for each workload: CPU
time of the server per run, and what its event loop executes per run, in bytecodes and calls. The second does not depend
on how busy the machine is, but counts nothing that happens in C or in other threads.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import rmtree
from statistics import median
from tempfile import mkdtemp

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bench import workloads
from bench.__main__ import RESULTS
from bench.load import Job
from bench.machine import load

COUNTED_RUNS = 300
ROUNDS = 6
RUNS_PER_ROUND = 2000

_TOOL = {"kind": "mantyx_plugin", "name": "add"}  # the name that earlier versions know too
JOBS = {
    "one": Job(port=0, key="", body=workloads.body("scripted:one", tools=(_TOOL,))),
    "one, c=16": Job(port=0, key="", body=workloads.body("scripted:one", tools=(_TOOL,)), clients=16),
    "none": Job(port=0, key="", body=workloads.body("scripted:none")),
    "http-model": Job(port=0, key="", body=workloads.body("fake:tool", tools=(_TOOL,))),
    "client-tool": Job(port=0, key="", body=workloads.body("scripted:client", tools=(workloads.CLIENT_TOOL,))),
    "accepted": Job(port=0, key="", body=workloads.body("scripted:none"), mode="post"),
}

_SERVE = """
import sys
from pathlib import Path
from bench import workloads
from bench.machine import Machine
workloads.TOOLS += sys.argv[2]
with Machine(Path(sys.argv[1]), quick=True) as machine:
    server = machine.server
    print('{"port": %d, "key": "%s", "pid": %d}' % (server.port, server.key, server.pid), flush=True)
    sys.stdin.read()
"""
"""Uses nothing of the other checkout's bench but what it has always had."""

_COUNT = """
import signal, sys
counted = [0, 0]
def _count_bytecode(frame, event, arg):
    if event == "opcode":
        counted[0] += 1
    return _count_bytecode
def _count_call(frame, event, arg):
    counted[1] += 1
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    return _count_bytecode
def _begin(*_):
    counted[:] = 0, 0
    sys.settrace(_count_call)
def _end(*_):
    sys.settrace(None)
    with open({file!r}, "w") as file:
        print(*counted, file=file)
signal.signal(signal.SIGUSR1, _begin)
signal.signal(signal.SIGUSR2, _end)
"""
"""Part of the module of tools, which the server imports on the thread of its event loop."""


class Server(Struct, frozen=True):
    port: int
    key: str
    pid: int


class Counts(Struct, frozen=True):
    """Per run."""

    bytecodes: float
    calls: float


@contextmanager
def serving(checkout: Path, folder: Path, *, tools: str = "") -> Generator[Server]:
    process = subprocess.Popen(
        [checkout / ".venv/bin/python", "-c", _SERVE, folder, tools],
        cwd=checkout,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield msgspec.json.decode(process.stdout.readline(), type=Server)
        finally:
            process.stdin.close()


def cpu_us(checkouts: tuple[Path, Path], job: Job, folder: Path, *, rounds: int) -> tuple[list[float], list[float]]:
    """CPU time per run of each server, round by round; the one that is first changes with each round."""
    times: tuple[list[float], list[float]] = ([], [])
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(checkout, folder)) for checkout in checkouts]
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                at = servers[which]
                here = replace(job, port=at.port, key=at.key, pid=at.pid, rounds=1, seconds=60, limit=RUNS_PER_ROUND)
                done = load(replace(here, warm_up=2 * job.clients))[0]
                times[which].append(done.cpu_s / done.done * 1e6)
    return times


def counts(checkout: Path, job: Job, folder: Path) -> Counts:
    file = folder / "counts"
    with serving(checkout, folder, tools=_COUNT.format(file=str(file))) as server:
        job = replace(job, port=server.port, key=server.key, rounds=1, seconds=60, limit=COUNTED_RUNS, clients=32)
        load(job)
        os.kill(server.pid, signal.SIGUSR1)
        load(job)
        os.kill(server.pid, signal.SIGUSR2)
        load(replace(job, limit=1))  # the loop has handled the signal before this
    bytecodes, calls = (int(number) / COUNTED_RUNS for number in file.read_text().split())
    return Counts(bytecodes, calls)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("other", type=Path, metavar="OTHER", help="a checkout with its own .venv")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {'; '.join(JOBS)}; all without one")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of CPU time; 0 for bytecodes alone")
    chosen = parser.parse_args()
    if not (chosen.other / ".venv/bin/python").exists():
        parser.error(f"{chosen.other} has no .venv")
    if unknown := [name for name in chosen.names if name not in JOBS]:
        parser.error(f"unknown: {'; '.join(unknown)}; there are {'; '.join(JOBS)}")
    checkouts = (chosen.other.resolve(), Path(__file__).resolve().parent.parent)
    RESULTS.mkdir(exist_ok=True)
    folder = Path(mkdtemp(prefix="compare-", dir=RESULTS))
    try:
        for name in chosen.names or JOBS:
            there, here = (counts(checkout, JOBS[name], folder) for checkout in checkouts)
            print(
                f"{name:12} {there.bytecodes:7,.0f} → {here.bytecodes:7,.0f} bytecodes"
                f" ({here.bytecodes / there.bytecodes:.2f}), {there.calls:5,.0f} → {here.calls:5,.0f} calls",
                flush=True,
            )
            if chosen.rounds:
                before, after = cpu_us(checkouts, JOBS[name], folder, rounds=chosen.rounds)
                ratio = median(mine / other for other, mine in zip(before, after, strict=True))
                print(f"{'':12} {median(before):7,.0f} → {median(after):7,.0f} µs of CPU ({ratio:.2f})", flush=True)
    finally:
        rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
