"""`weftline vacuum`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weftline.cli.output import DB, JSON

if TYPE_CHECKING:
    from weftline.cli.reach import Reached


@click.command()
@DB
@JSON
def command(db: Path, as_json: bool) -> None:
    """Return unused space to the disk, and say how much.

    It works in small steps and leaves at least half the time to others. `weftline retention run` does this at its end.
    """
    from weftline.cli.reach import reach

    with reach(db, writes=True) as at:
        freed = shrink(at)
    click.echo(json.dumps({"bytes": freed}) if as_json else f"{freed:,} bytes were returned to the disk.")


def shrink(at: Reached) -> int:
    """Runs all steps; returns how many bytes they freed."""
    freed = 0
    while count := at.operate("POST", "store/shrink")["bytes"]:
        freed += count
    return freed
