"""`weftline restore`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON


@click.command()
@click.argument("backup", type=click.Path(path_type=Path))
@DB
@JSON
def command(backup: Path, db: Path, as_json: bool) -> None:
    """Turn a backup into a store, at a path that has none, and print that path.

    The store is held: a server on it answers reads, but does not continue runs until `weftline resume --all`.
    """
    from weftline.cli.copies import unreadable_in
    from weftline.store import restore_store
    from weftline.store.naming import db_option

    copied = restore_store(backup.absolute(), db.absolute())
    report = {"path": str(db.absolute()), "bytes": copied.bytes, "unreadable": copied.unreadable}
    click.echo(json.dumps(report) if as_json else db.absolute())
    if unreadable := unreadable_in(copied):
        click.echo(f"Parts of the store cannot be read: {unreadable}.", err=True)
    click.echo(
        f"Restored {copied.bytes:,} bytes. No run continues before `weftline resume --all{db_option(db)}`;"
        " cancel those that must not first.",
        err=True,
    )
