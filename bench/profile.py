"""`python -m bench.profile [NAME]`: where a server under load spends its time, by function.

NAME is `one` (the default), `http-model`, `client-tool` or `none`. Needs py-spy and the right to trace a process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from bench import workloads
from bench.__main__ import RESULTS
from bench.load import Job
from bench.machine import Machine, Server, load

SECONDS = 8
ROOTS = ("(click/", "(threading.py)", "(<frozen runpy>)", "weftline/cli/", "weftline/__main__.py", "uvloop/__init__.py")
"""Frames that lie under everything and tell nothing."""
RATE_HZ = 400

BODIES = {
    "one": workloads.body("scripted:one", tools=(workloads.SERVER_TOOL,)),
    "http-model": workloads.body("fake:tool", tools=(workloads.SERVER_TOOL,)),
    "client-tool": workloads.body("scripted:client", tools=(workloads.CLIENT_TOOL,)),
    "none": workloads.body("scripted:none"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profile")
    parser.add_argument("name", nargs="?", default="one", choices=sorted(BODIES))
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--lines", type=int, default=45, help="how many functions to show")
    chosen = parser.parse_args()
    with Machine(RESULTS, quick=True) as machine, machine.fresh_server() as server, machine.folder() as folder:
        stacks = profile(server, BODIES[chosen.name], clients=chosen.clients, file=folder / "stacks")
    print(summary(stacks, most=chosen.lines))


def profile(server: Server, body: str, *, clients: int, file: Path) -> Counter[tuple[str, ...]]:
    """How often each stack was seen on a busy thread. `--nonblocking`: a profiler that stops it would halve it."""
    job = Job(port=server.port, key=server.key, body=body, clients=clients, rounds=1, seconds=SECONDS + 2)
    work = threading.Thread(target=lambda: print(f"{load(job)[0].rate:,.0f} runs/s while being watched"))
    load(Job(port=server.port, key=server.key, body=body, clients=clients, rounds=1, seconds=0.5))
    work.start()
    command = [
        str(Path(sys.executable).with_name("py-spy")),
        "record",
        "--nonblocking",
        "--format",
        "raw",
        "--rate",
        str(RATE_HZ),
        "--threads",
    ]
    command += ["--duration", str(SECONDS), "--pid", str(server.pid), "--output", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    work.join()
    stacks: Counter[tuple[str, ...]] = Counter()
    for line in file.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        stacks[tuple(_shown(frame) for frame in stack.split(";"))] += int(count)
    return stacks


def _shown(frame: str) -> str:
    """`function (file)` without the line, and the path from the package on."""
    if frame.startswith("thread ("):
        return frame.rpartition(": ")[2]
    name, _, place = frame.partition(" (")
    path = place.rstrip(")").rpartition(":")[0]
    for root in ("site-packages/", "src/", "lib/python3"):
        path = path.rpartition(root)[2]
    return f"{name} ({path})" if path else name


def summary(stacks: Counter[tuple[str, ...]], *, most: int) -> str:
    """Per function the share of samples in it alone, and with what it calls."""
    total = sum(stacks.values())
    alone: Counter[str] = Counter()
    within: Counter[str] = Counter()
    threads: Counter[str] = Counter()
    for stack, count in stacks.items():
        alone[stack[-1]] += count
        threads[stack[0]] += count
        for function in set(stack[1:]):
            if not any(root in function for root in ROOTS):
                within[function] += count
    lines = [f"{total} samples"]
    for title, counts in (("threads", threads), ("self", alone), ("with callees", within)):
        lines.append(f"\n{title}")
        lines += [f"{100 * count / total:6.1f} %  {name}" for name, count in counts.most_common(most)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
