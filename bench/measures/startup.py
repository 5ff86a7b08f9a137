"""Starting: imports and the server, each in fresh processes whose bytecode is compiled."""

from __future__ import annotations

import subprocess
import sys
import time

from bench import workloads
from bench.machine import Machine
from bench.rows import Row
from weftline.testing import ServerProcess

LIBRARIES = "import asyncio, apsw, click, httptools, msgspec, pydantic, uvicorn, uvloop, jsonschema_rs"
"""What a server needs besides our own code."""


def imports(machine: Machine) -> list[Row]:
    rounds = machine.rounds(9)
    bare = min(process_ms("pass", rounds))
    return [
        Row(name, "ms", "less", process_ms(statement, rounds), floor=bare, reach=reach, note=note)
        for name, statement, reach, note in (
            ("import weftline", "import weftline", 100, "whole process; floor: bare python"),
            ("import weftline.client", "import weftline.client", 60, ""),
            ("import weftline, use Agent", "import weftline; weftline.Agent", None, ""),
        )
    ]


def ready(machine: Machine) -> list[Row]:
    rounds = machine.rounds(5)
    took: list[float] = []
    for _ in range(rounds + 1):
        with machine.folder() as folder:
            process = ServerProcess(folder, scripts={"one": workloads.SCRIPTS["one"]}, tools=workloads.TOOLS)
            begun = time.perf_counter()
            with process:
                took.append((time.perf_counter() - begun) * 1000)
    # The first start compiled the bytecode.
    floor = min(process_ms(LIBRARIES, rounds))
    return [
        Row("server ready", "ms", "less", tuple(took[1:]), floor=floor, reach=500, note="floor: python + libraries")
    ]


def process_ms(statement: str, rounds: int) -> tuple[float, ...]:
    command = [sys.executable, "-c", statement]
    subprocess.run(command, check=True)  # compiles the bytecode
    took: list[float] = []
    for _ in range(rounds):
        begun = time.perf_counter()
        subprocess.run(command, check=True)
        took.append((time.perf_counter() - begun) * 1000)
    return tuple(took)
