"""Agents in a script: what a run costs without a server, beside other libraries where they are installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from bench.library import PEERS
from bench.machine import Machine
from bench.measures.startup import process_ms
from bench.rows import Row

HELLO = (
    "from weftline import Agent, tool\n"
    "from weftline.testing import ScriptedModel\n"
    "print(Agent(ScriptedModel(['Hello.'])).run_sync('Hi.').text, file=open('/dev/null', 'w'))"
)


def library(machine: Machine) -> list[Row]:
    rounds = machine.rounds(7)
    bare = min(process_ms("pass", rounds))
    rows = [
        Row("import Agent", "ms", "less", process_ms("from weftline import Agent", rounds), floor=bare, reach=None),
        Row("hello, a process", "ms", "less", process_ms(HELLO, rounds), floor=bare, note="floor: bare python"),
        Row("run in memory", "ms", "less", _took("text", rounds, 300), reach=0.5),
        Row("run with a tool", "ms", "less", _took("tool", rounds, 300), reach=1.0),
        Row("durable run with a tool", "ms", "less", _took("durable", rounds, 100)),
    ]
    port = machine.model.port
    ours = _took("http", rounds, 50, port=port)
    rows.append(Row("run with a tool, model over HTTP", "ms", "less", ours))
    for name, module in PEERS.items():
        if find_spec(module) is not None:
            took = _took(name, rounds, 50, port=port)
            rows.append(Row(f"the same by {name}", "ms", "less", took, floor=min(ours), note="floor: ours"))
    return rows


def _took(kind: str, rounds: int, runs: int, *, port: int = 0) -> tuple[float, ...]:
    command = [sys.executable, "-m", "bench.library", kind, str(rounds), str(runs), str(port)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    return tuple([float(line) for line in done.stdout.split()])
