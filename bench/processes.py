"""Processes to measure with: a floor, a stand-in for a model, a load; and what a process has used."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def memory_kb(pid: int) -> float:
    """Memory that the process alone holds: what it shares with others, such as libraries, does not count."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def settled_kb(pid: int) -> float:
    """The memory of a process once it does not grow any more: what a server loads after its start is not counted."""
    last, same = memory_kb(pid), 0
    while same < 5:
        time.sleep(0.2)
        now = memory_kb(pid)
        same = same + 1 if now <= last * 1.002 else 0
        last = max(last, now)
    return last


class Child:
    """A module of the bench as a process that prints `ready …` when it can be used."""

    def __init__(self, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            text=True,
        )
        line = self.line()
        if not line.startswith("ready"):
            self.stop()
            raise RuntimeError(f"{module} did not start: {line!r}")
        self.port = int(line.split()[1]) if len(line.split()) > 1 else 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self) -> str:
        """The next line of its output."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go(self) -> None:
        """Sends it an empty line: the sign to carry on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def output_of(module: str, *arguments: str, data: bytes = b"", timeout_s: float = 120) -> bytes:
    """Runs a module of the bench to its end and returns what it wrote."""
    return run([sys.executable, "-m", module, *arguments], data=data, timeout_s=timeout_s)


def run(command: Sequence[str], *, data: bytes = b"", timeout_s: float = 120) -> bytes:
    return subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True, timeout=timeout_s).stdout
