"""The measures that look into the store or depend on rules of the library still work; figures are not judged here."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from bench.machine import Machine
from bench.measures import MEASURES, awaits, budgets, parked


@pytest.mark.parametrize(
    ("name", "module", "sizes"),
    [
        ("parked", parked, {"BATCH": 20}),
        ("awaits", awaits, {"FIRST": 20, "MANY": 20, "ANSWERS": 2}),
        ("budgets", budgets, {"_RUNS": 1, "_TURNS": 3}),
    ],
)
def test_a_measure_works(
    name: str, module: ModuleType, sizes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant, size in sizes.items():
        monkeypatch.setattr(module, constant, size)
    with Machine(tmp_path, quick=True) as machine:
        rows = MEASURES[name](machine)
    assert rows and all(row.rounds for row in rows)
