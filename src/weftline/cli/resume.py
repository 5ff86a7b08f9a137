"""`weftline resume`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON


@click.command()
@click.option("--all", "everything", is_flag=True, required=True, help="All runs of the store.")
@DB
@JSON
def command(everything: bool, db: Path, as_json: bool) -> None:
    """Let the runs of a restored store continue, and say how many have not ended.

    On a store that is not held this changes nothing, and says so.
    """
    from weftline.cli.reach import reach

    with reach(db, writes=True) as at:
        resumed = at.operate("POST", "store/resume")
    count = resumed["runs"]
    if as_json:
        click.echo(json.dumps(resumed))
    elif not resumed["held"]:
        click.echo(f"The store at {db} is not held: there is nothing to resume.")
    elif count:
        click.echo(f"Runs may continue: {count} {'has' if count == 1 else 'have'} not ended.")
    else:
        click.echo("Runs may continue; all have ended.")
