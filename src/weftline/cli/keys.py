"""`weftline keys`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from weftline.cli.output import DB, JSON, Form, list_forms, show_list, show_one


@click.group()
def command() -> None:
    """API keys of a workspace."""


@command.command()
@click.option("--workspace", required=True, metavar="SLUG", help="Created if it does not exist.")
@DB
@click.option("--name", default="", help="A note to tell keys apart.")
@click.option(
    "--usage",
    default="developer_api",
    show_default=True,
    type=click.Choice(["developer_api", "mcp", "a2a"]),
    help="What the key is for.",
)
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    help="Restrict the key to agents, by id or slug; may be repeated.",
)
@JSON
def create(workspace: str, db: Path, name: str, usage: str, agents: tuple[str, ...], as_json: bool) -> None:
    """Create a key and print it. It is shown only once and stored nowhere."""
    from weftline.cli.admin import administer

    identity, secret = administer(db, "keys.create", workspace=workspace, name=name, usage=usage, agents=list(agents))
    click.echo(json.dumps({"id": identity, "key": secret}) if as_json else secret)


@command.command("import")
@click.option("--workspace", required=True, metavar="SLUG", help="Created if it does not exist.")
@DB
@click.option("--name", default="", help="A note to tell keys apart.")
@JSON
def import_key(workspace: str, db: Path, name: str, as_json: bool) -> None:
    """Import a key that clients already hold, read from standard input; prints its id."""
    from weftline.cli.admin import administer

    secret = sys.stdin.readline().strip()
    identity = administer(db, "keys.import", workspace=workspace, secret=secret, name=name)
    click.echo(json.dumps({"id": identity}) if as_json else identity)


@command.command("list")
@click.option("--workspace", required=True, metavar="SLUG")
@DB
@click.option("--all", "revoked", is_flag=True, help="Revoked keys too.")
@list_forms
def list_keys(workspace: str, db: Path, revoked: bool, form: Form) -> None:
    """List a workspace's keys, without their secrets."""
    from weftline.cli.admin import listed

    show_list(listed(db, "keys.list", workspace=workspace, revoked=revoked), form)


@command.command()
@click.argument("key_id")
@DB
@JSON
def show(key_id: str, db: Path, as_json: bool) -> None:
    """Show a key: everything but the key itself."""
    from weftline.cli.admin import administer

    show_one(administer(db, "keys.show", id=key_id), as_json=as_json)


@command.command()
@click.argument("key_id")
@DB
@JSON
def delete(key_id: str, db: Path, as_json: bool) -> None:
    """Revoke a key, immediately and permanently."""
    from weftline.cli.admin import administer

    gone = administer(db, "keys.delete", id=key_id)
    if as_json:
        show_one(gone, as_json=True)
