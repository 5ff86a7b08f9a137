"""`weftline vacuum`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON


@click.command()
@DB
@JSON
def command(db: Path, as_json: bool) -> None:
    """Return unused space to the disk, and say how much.

    It works in small steps and leaves at least half the time to others. `weftline retention run` does this at its end.
    """
    freed = shrink(db)
    click.echo(json.dumps({"bytes": freed}) if as_json else f"{freed:,} bytes were returned to the disk.")


def shrink(db: Path) -> int:
    """Runs all steps; returns how many bytes they freed."""
    from weftline.cli.admin import administer

    freed = 0
    while count := administer(db, "store.shrink"):
        freed += count
    return freed
