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
    not a backup. If anything in the copy cannot be read, it is kept, the command says what, and exits with 1.
    """
    from msgspec import convert

    from weftline.cli.copies import unreadable_in
    from weftline.cli.reach import reach
    from weftline.errors import LOG_DAMAGED, StoreError
    from weftline.store.rows import Copied

    path = dest.absolute()
    with reach(db, writes=True) as at:
        copied = convert(at.operate("POST", "store/backup", body={"to": str(path)}), Copied)
    report = {"path": str(path), "bytes": copied.bytes, "unreadable": copied.unreadable}
    click.echo(json.dumps(report) if as_json else path)
    if unreadable := unreadable_in(copied):
        raise StoreError(
            f"The copy was made, but parts of the store are damaged and cannot be read: {unreadable}.",
            code=LOG_DAMAGED,
        )
