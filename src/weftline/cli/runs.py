"""`weftline runs`."""

from __future__ import annotations

from pathlib import Path

import click

from weftline.cli.output import DB, JSON, show_all


@click.group()
def command() -> None:
    """Runs."""


@command.command("list")
@click.option("--unsupported", is_flag=True, required=True, help="Unfinished runs that a newer version has written.")
@click.option("--workspace", metavar="SLUG", help="The runs of this workspace alone.")
@DB
@JSON
def list_runs(unsupported: bool, workspace: str | None, db: Path, as_json: bool) -> None:
    """Print the ids of runs that this version of Weftline leaves alone.

    They can be read, and the version that wrote them, or a newer one, carries them on. With --json each says what of it
    is unknown here.
    """
    from weftline.cli.admin import administer

    show_all(administer(db, "runs.unsupported", workspace=workspace), id_field="id", as_json=as_json)
