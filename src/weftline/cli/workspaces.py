"""`weftline workspaces`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON, Form, list_forms, show_list


@click.group()
def command() -> None:
    """Workspaces and their features."""


@command.command("list")
@DB
@list_forms
def list_workspaces(db: Path, form: Form) -> None:
    """List all workspaces, by their slugs."""
    from weftline.cli.reach import reach

    with reach(db) as at:
        slugs = at.slugs()
    if form == "json":
        click.echo(json.dumps(slugs))
    else:
        show_list([{"workspace": slug} for slug in slugs], form, id_field="workspace")


@command.command()
@click.argument("slug")
@click.option("--on", multiple=True, metavar="FEATURE", help="Switch on: apiKeys or oauthApps; may be repeated.")
@click.option("--off", multiple=True, metavar="FEATURE", help="Switch off; may be repeated.")
@DB
@JSON
def features(slug: str, on: tuple[str, ...], off: tuple[str, ...], db: Path, as_json: bool) -> None:
    """Show or change which kinds of credential a workspace accepts. All are on unless switched off."""
    from weftline.cli.reach import named, reach

    changes = {**dict.fromkeys(on, True), **dict.fromkeys(off, False)}
    path = f"workspaces/{named(slug)}"
    with reach(db, writes=bool(changes)) as at:
        shown = at.operate("PATCH", path, body={"features": changes}) if changes else at.operate("GET", path)
    accepted: dict[str, bool] = shown["features"]
    if as_json:
        click.echo(json.dumps(accepted))
        return
    for name, state in accepted.items():
        click.echo(f"{name}  {'on' if state else 'off'}")
