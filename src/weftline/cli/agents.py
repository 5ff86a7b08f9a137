"""`weftline agents`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON, show_all, show_one

_WORKSPACE = click.option("--workspace", required=True, metavar="SLUG")


@click.group()
def command() -> None:
    """Stored agents of a workspace."""


@command.command()
@click.option("--workspace", required=True, metavar="SLUG", help="Created when it is new.")
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
    from weftline.cli.admin import administer, now_us

    with click.open_file(str(file), encoding="utf-8") as source:
        definition = source.read()
    made = administer(db, "agents.create", workspace=workspace, definition=definition, now=now_us())
    click.echo(json.dumps(made) if as_json else made["id"])


@command.command("list")
@_WORKSPACE
@DB
@JSON
def list_agents(workspace: str, db: Path, as_json: bool) -> None:
    """Print the ids of a workspace's agents."""
    from weftline.cli.admin import administer

    show_all(administer(db, "agents.list", workspace=workspace), id_field="id", as_json=as_json)


@command.command()
@click.argument("agent")
@_WORKSPACE
@DB
@JSON
def show(agent: str, workspace: str, db: Path, as_json: bool) -> None:
    """Show an agent, by id or slug."""
    from weftline.cli.admin import administer

    show_one(administer(db, "agents.show", workspace=workspace, id=agent), as_json=as_json)


@command.command()
@click.argument("agent")
@_WORKSPACE
@DB
@JSON
def delete(agent: str, workspace: str, db: Path, as_json: bool) -> None:
    """Remove an agent, by id or slug. Runs and sessions that began with it go on."""
    from weftline.cli.admin import administer

    removed = administer(db, "agents.delete", workspace=workspace, id=agent)
    click.echo(json.dumps({"id": removed}) if as_json else removed)
