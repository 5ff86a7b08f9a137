"""`weftline keys`."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def command() -> None:
    """API keys of a workspace."""


@command.command()
@click.option("--workspace", required=True, metavar="SLUG", help="Created when it is new.")
@click.option("--db", default="weftline-data", show_default=True, type=click.Path(path_type=Path), help="The store.")
@click.option("--name", default="", help="A note to tell keys apart.")
def create(workspace: str, db: Path, name: str) -> None:
    """Create a key and print it. It is shown this once and stored nowhere."""
    from weftline.cli.admin import administer, now_us

    _, secret = administer(db, "keys.create", workspace=workspace, name=name, now=now_us())
    click.echo(secret)
