"""`python -m bench [NAME …] [--quick] [--json]`: measures, prints a table, and keeps the JSON in `bench/results`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.machine import Machine
from bench.measures import MEASURES
from bench.rows import Row, Shown, shown, table

RESULTS = Path(__file__).resolve().parent / "results"


class Report(Struct, frozen=True):
    at: str
    python: str
    system: str
    cores: int
    load_before: float
    """The machine's load average when the bench began: what is measured beside other work looks worse than it is."""
    seconds: float
    rows: list[Shown]
    failed: dict[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures Weftline on this machine.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASURES)}; all without one")
    parser.add_argument("--quick", action="store_true", help="half of the rounds")
    parser.add_argument("--json", action="store_true", help="JSON on stdout in place of the table")
    chosen = parser.parse_args()
    names: list[str] = chosen.names or list(MEASURES)
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    rows, report = measure(names, quick=chosen.quick)
    data = msgspec.json.format(msgspec.json.encode(report), indent=2)
    file = RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%S}.json"
    file.write_bytes(data)
    print(data.decode() if chosen.json else table(rows))
    print(f"{report.seconds:.0f} s; JSON in {os.path.relpath(file)}", file=sys.stderr)
    for name, problem in report.failed.items():
        print(f"FAILED {name}: {problem}", file=sys.stderr)
    return 1 if report.failed else 0


def measure(names: list[str], *, quick: bool) -> tuple[list[Row], Report]:
    rows: list[Row] = []
    failed: dict[str, str] = {}
    begun = time.perf_counter()
    load_before = os.getloadavg()[0]
    with Machine(RESULTS, quick=quick) as machine:
        for name in names:
            print(f"{name} …", file=sys.stderr, flush=True)
            try:
                rows += MEASURES[name](machine)
            except Exception as error:
                # One measure that fails must not cost the results of the others.
                failed[name] = str(error).strip().rpartition("\n")[2] or type(error).__name__
    report = Report(
        datetime.now(UTC).isoformat(timespec="seconds"),
        platform.python_version(),
        f"{platform.system()} {platform.release()} {platform.machine()}",
        os.cpu_count() or 0,
        load_before,
        time.perf_counter() - begun,
        [shown(row) for row in rows],
        failed,
    )
    return rows, report


if __name__ == "__main__":
    sys.exit(main())
