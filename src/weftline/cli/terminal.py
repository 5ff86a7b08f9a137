"""Output for terminals: colour, tables, and no control characters from outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

import click

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_GAP = "  "
_MIN_WIDTH = 6
STATUS_COLOURS = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "queued": "blue"}


def is_terminal(stream: TextIO | None = None) -> bool:
    return (stream or sys.stdout).isatty()


def is_coloured(stream: TextIO | None = None) -> bool:
    """Whether to use colours: on a terminal that supports them, unless `NO_COLOR` is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, stream: TextIO | None = None, **style: Any) -> str:
    return click.style(text, **style) if style and is_coloured(stream) else text


def clean(text: str) -> str:
    """Removes control characters from untrusted text; line breaks and tabs stay."""
    return _CONTROL.sub("", text)


def call_text(name: str, args: dict[str, Any]) -> str:
    """Returns a call, whole: nobody should approve what they do not see."""
    return clean(f"{name} {json.dumps(args, ensure_ascii=False)}") if name else ""


def on_one_line(text: str, width: int) -> str:
    text = " ".join(clean(text).split())
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def show_table(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    colours: Mapping[str, str] | None = None,
    whole: Collection[str] = (),
) -> None:
    """Prints a table no wider than the terminal: the widest columns are cut, except those in `whole`.

    `colours` maps texts of cells to colours. `whole` is for values that people copy, such as ids. Elsewhere than on a
    terminal the cells are whole, and separated by tabs.
    """
    if not is_terminal():
        for line in (names, *rows):
            click.echo("\t".join(" ".join(clean(cell).split()) for cell in line))
        return
    cells = [[on_one_line(cell, 200) for cell in row] for row in rows]
    widths = [max([len(name), *(len(row[at]) for row in cells)]) for at, name in enumerate(names)]
    _fit(widths, [at for at, name in enumerate(names) if name not in whole])
    click.echo(styled(_line(names, widths), dim=True))
    for row in cells:
        line = _line(row, widths)
        for cell in row:
            if colours and cell in colours:
                line = line.replace(cell, styled(cell, fg=colours[cell]), 1)
        click.echo(line)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    fitted = [on_one_line(cell, width).ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return _GAP.join(fitted).rstrip()


def _fit(widths: list[int], elastic: Sequence[int]) -> None:
    """Narrows the `elastic` columns until the table fits, or they cannot get narrower."""
    room = shutil.get_terminal_size().columns - len(_GAP) * (len(widths) - 1)
    while elastic and sum(widths) > room:
        widest = max(elastic, key=lambda at: widths[at])
        if widths[widest] <= _MIN_WIDTH:
            return
        widths[widest] -= 1


def ago(time: str | None) -> str:
    """Returns how long ago a time from the wire was, in words; elsewhere than on a terminal the time itself."""
    if not time:
        return ""
    if not is_terminal():
        return time
    seconds = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{max(0, int(seconds))} s ago"
