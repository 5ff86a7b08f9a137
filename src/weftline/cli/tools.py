"""`weftline tools`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO, cast

import click

from weftline.cli.output import DB, JSON, show_one, show_warnings
from weftline.cli.resource import WORKSPACE, add_commands


@click.group()
def command() -> None:
    """Tools stored in a workspace."""


@command.command()
@WORKSPACE
@DB
@click.option("--file", "source", default="-", type=click.File(encoding="utf-8"), help="The tool as JSON; - for stdin.")
@click.option("--secret", "secrets", multiple=True, metavar="NAME=VALUE", help="A secret; may be repeated.")
@JSON
def create(workspace: str, db: Path, source: TextIO, secrets: tuple[str, ...], as_json: bool) -> None:
    """Store a tool, described as for POST …/tools, and print its id."""
    from weftline.cli.admin import administer

    try:
        loaded: object = json.load(source)
    except ValueError as error:
        raise click.ClickException(f"The tool is not valid JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise click.ClickException("The tool must be a JSON object.")
    tool = cast("dict[str, Any]", loaded)
    if secrets:
        tool["secrets"] = {**(tool.get("secrets") or {}), **dict(_secret(one) for one in secrets)}
    made = administer(db, "tools.create", workspace=workspace, tool=tool)
    show_warnings(made)
    if as_json:
        show_one(made, as_json=True)
    else:
        click.echo(made["id"])


add_commands(command, kind="tools", by="its id")


def _secret(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark:
        raise click.BadParameter("must be NAME=VALUE", param_hint="--secret")
    return name, value
