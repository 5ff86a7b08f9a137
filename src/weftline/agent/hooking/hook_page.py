"""The table of docs/hooks.md, which a test checks: `python -m weftline.agent.hooking.hook_page docs/hooks.md`."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

from weftline.agent.hooks import OTHER_NAMES, Point
from weftline.agent.hooks_outside import POINTS

_TABLE = re.compile(r"(<!-- table -->\n).*?(<!-- /table -->)", re.DOTALL)


def table() -> str:
    """One row for each point."""
    rows = ["| class | name | also | kind | fields |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *[_row(point) for point in POINTS.values()]]) + "\n"


def _row(point: type[Point]) -> str:
    others = ", ".join([f"`{other}`" for other, name in OTHER_NAMES.items() if name == point.name])
    named = [one.name for one in fields(point) if not one.name.startswith("_")]  # type: ignore[arg-type]  # pyright: ignore
    names = ", ".join([f"**`{name}`**" if name in point.settable else f"`{name}`" for name in named])
    return f"| `{point.__name__}` | `{point.name}` | {others} | {point.kind} | {names} |"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(_TABLE.sub(lambda found: found[1] + table() + found[2], page.read_text(encoding="utf-8")))
