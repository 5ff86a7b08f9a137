"""`weftline import`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--workspace", default="default", show_default=True, metavar="NAME", help="Where the runs will be.")
@DB
@JSON
def command(file: Path, workspace: str, db: Path, as_json: bool) -> None:
    """Add the runs of an exported FILE to the store, and print the ids of those that are new.

    They keep their ids and can only be read, replayed and forked. A session becomes a new one, which can be continued;
    its id is printed last. A server may have the store open. Importing a file again changes nothing.
    """
    from weftline.cli.reach import reach

    with reach(db, writes=True) as at:
        imported = at.operate("POST", "imports", body={"path": str(file.absolute()), "workspace": workspace})
    if as_json:
        click.echo(json.dumps(imported))
        return
    for run_id in imported["created"]:
        click.echo(run_id)
    if imported.get("thread"):
        click.echo(imported["thread"])
    if imported["present"]:
        click.echo(f"Already here: {', '.join(imported['present'])}.", err=True)
