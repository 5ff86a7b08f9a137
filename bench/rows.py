"""One line of the results: a measure, its floor in the same run, and what it should reach."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal, TypeAlias

from msgspec import Struct

Better: TypeAlias = Literal["more", "less"]


class Row(Struct, frozen=True):
    """`rounds` are in `unit`. `reach` is what the product is held to, `floor` what the same work costs without it."""

    name: str
    unit: str
    better: Better
    rounds: tuple[float, ...]
    floor: float | None = None
    reach: float | None = None
    note: str = ""

    @property
    def best(self) -> float:
        return max(self.rounds) if self.better == "more" else min(self.rounds)

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def times_floor(self) -> float | None:
        """How many times the floor's cost the median is; 1 is perfect, for rates and for times."""
        if not self.floor or not self.median:
            return None
        return self.floor / self.median if self.better == "more" else self.median / self.floor

    @property
    def reached(self) -> bool | None:
        if self.reach is None:
            return None
        return self.median >= self.reach if self.better == "more" else self.median <= self.reach


class Shown(Struct, frozen=True):
    """A row as the JSON has it."""

    name: str
    unit: str
    better: Better
    best: float
    median: float
    rounds: tuple[float, ...]
    floor: float | None
    times_floor: float | None
    reach: float | None
    reached: bool | None
    note: str


def shown(row: Row) -> Shown:
    return Shown(
        row.name,
        row.unit,
        row.better,
        row.best,
        row.median,
        row.rounds,
        row.floor,
        row.times_floor,
        row.reach,
        row.reached,
        row.note,
    )


HEAD = ("measure", "unit", "best", "median", "floor", "x floor", "reach", "", "note")


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    lines = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, 1, 8) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    verdict = {None: "", True: "ok", False: "MISS"}[row.reached]
    return (
        row.name,
        row.unit,
        _number(row.best),
        _number(row.median),
        _number(row.floor),
        _number(row.times_floor),
        _number(row.reach),
        verdict,
        row.note,
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
