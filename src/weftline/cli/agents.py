"""`weftline agents`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON, show_warnings
from weftline.cli.resource import NEW_WORKSPACE, add_commands


@click.group()
def command() -> None:
    """Stored agents of a workspace."""


@command.command()
@NEW_WORKSPACE
@click.option(
    "--file",
    "file",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    help="The definition (JSON), or - for standard input.",
)
@DB
@JSON
def create(workspace: str, file: Path, db: Path, as_json: bool) -> None:
    """Store an agent and print its id."""
    from weftline.cli.admin import administer

    with click.open_file(str(file), encoding="utf-8") as source:
        definition = source.read()
    made = administer(db, "agents.create", workspace=workspace, definition=definition)
    show_warnings(made)
    click.echo(json.dumps(made) if as_json else made["id"])


add_commands(command, kind="agents", by="its id or slug")
