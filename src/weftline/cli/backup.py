"""`weftline backup`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON


@click.command()
@click.argument("dest", type=click.Path(path_type=Path))
@DB
@JSON
def command(dest: Path, db: Path, as_json: bool) -> None:
    """Copy the store to the new directory DEST, while a server uses it or without one, and print its path.

    The copy is a checked snapshot of the store, with the keys that its secrets need. Copying the files themselves is
    not a backup.
    """
    from weftline.cli.admin import administer

    path = dest.absolute()
    size = administer(db, "store.backup", to=str(path))
    click.echo(json.dumps({"path": str(path), "bytes": size}) if as_json else path)
