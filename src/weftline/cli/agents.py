"""`weftline agents`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from weftline.cli.output import DB, JSON, show_warnings
from weftline.cli.resource import NEW_WORKSPACE, WORKSPACE, add_commands


@click.group()
def command() -> None:
    """Stored agents of a workspace."""


FILE = click.option(
    "--file",
    "file",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    help="The definition (JSON), or - for standard input.",
)


@command.command()
@NEW_WORKSPACE
@FILE
@DB
@JSON
def create(workspace: str, file: Path, db: Path, as_json: bool) -> None:
    """Store an agent and print its id.

    A running server warns of models and tools that it does not have.
    """
    from weftline.cli.reach import reach

    definition = _read(file)
    with reach(db, workspace=workspace, writes=True) as at:
        made = at.ensure().post("/agents", definition)
    _show_id(made, as_json=as_json)


@command.command()
@click.argument("name", metavar="AGENT")
@WORKSPACE
@FILE
@DB
@JSON
def update(name: str, workspace: str, file: Path, db: Path, as_json: bool) -> None:
    """Replace the definition of an agent, by its id or slug, and print its id.

    Fields that are not in the file are removed, except the slug. Secrets that are `[redacted]`, as `show` prints them,
    stay. Existing runs and sessions keep what they started with.
    """
    from weftline.cli.reach import named, reach

    definition = _read(file)
    with reach(db, workspace=workspace, writes=True) as at:
        made = at.call("PUT", f"/agents/{named(name)}", body=definition)
    _show_id(made, as_json=as_json)


def _read(file: Path) -> bytes:
    with click.open_file(str(file), encoding="utf-8") as source:
        return source.read().encode()


def _show_id(agent: dict[str, Any], *, as_json: bool) -> None:
    show_warnings(agent)
    click.echo(json.dumps(agent) if as_json else agent["id"])


add_commands(command, kind="agents", by="its id or slug")
