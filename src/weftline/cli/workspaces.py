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
    from weftline.cli.admin import administer

    slugs = administer(db, "workspaces.list")
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
    from weftline.cli.admin import administer

    for names, state in ((on, True), (off, False)):
        for name in names:
            administer(db, "workspaces.set_feature", workspace=slug, feature=name, on=state)
    accepted = administer(db, "workspaces.features", workspace=slug)
    if as_json:
        click.echo(json.dumps(accepted))
        return
    for name, state in accepted.items():
        click.echo(f"{name}  {'on' if state else 'off'}")
