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
    from weftline.cli.reach import reach

    asked = {"name": name, "usage": usage, "agentIds": list(agents) or None}
    with reach(db, workspace=workspace, writes=True) as at:
        made = at.ensure().post("/api-keys", asked)
    click.echo(json.dumps({"id": made["id"], "key": made["key"]}) if as_json else made["key"])


@command.command("import")
@click.option("--workspace", required=True, metavar="SLUG", help="Created if it does not exist.")
@DB
@click.option("--name", default="", help="A note to tell keys apart.")
@JSON
def import_key(workspace: str, db: Path, name: str, as_json: bool) -> None:
    """Import a key that clients already hold, read from standard input; prints its id."""
    from weftline.cli.reach import named, reach

    secret = sys.stdin.readline().strip()
    with reach(db, writes=True) as at:
        made = at.operate("POST", f"workspaces/{named(workspace)}/imported-keys", body={"secret": secret, "name": name})
    click.echo(json.dumps({"id": made["id"]}) if as_json else made["id"])


@command.command("list")
@click.option("--workspace", required=True, metavar="SLUG")
@DB
@click.option("--all", "revoked", is_flag=True, help="Revoked keys too.")
@list_forms
def list_keys(workspace: str, db: Path, revoked: bool, form: Form) -> None:
    """List a workspace's keys, without their secrets."""
    from weftline.cli.reach import reach

    with reach(db, workspace=workspace) as at:
        show_list(at.items("/api-keys", "keys", revoked="true" if revoked else None), form)


@command.command()
@click.argument("key_id")
@DB
@JSON
def show(key_id: str, db: Path, as_json: bool) -> None:
    """Show a key: everything but the key itself."""
    from weftline.cli.reach import named, reach

    with reach(db) as at:
        show_one(at.get(f"/api-keys/{named(key_id)}"), as_json=as_json)


@command.command()
@click.argument("key_id")
@DB
@JSON
def delete(key_id: str, db: Path, as_json: bool) -> None:
    """Revoke a key, immediately and permanently."""
    from weftline.cli.reach import named, reach

    with reach(db, writes=True) as at:
        at.call("DELETE", f"/api-keys/{named(key_id)}")
        if as_json:
            show_one(at.get(f"/api-keys/{named(key_id)}"), as_json=True)
