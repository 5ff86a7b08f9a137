"""`weftline oauth`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON, Form, list_forms, show_done, show_list, show_one


@click.group()
def command() -> None:
    """OAuth apps, and what users have allowed them."""


@command.group()
def apps() -> None:
    """OAuth apps of a workspace."""


@apps.command()
@click.option("--workspace", required=True, metavar="SLUG", help="The owner; created if it does not exist.")
@click.option("--name", required=True, help="Shown to users when they are asked for access.")
@click.option("--redirect-uri", "redirect_uris", multiple=True, metavar="URI", help="May be repeated.")
@click.option("--scope", "scopes", multiple=True, required=True, help="What it may ask for; may be repeated.")
@click.option("--public", is_flag=True, help="For users of every workspace, not only of the owner.")
@click.option("--client-credentials", is_flag=True, help="Let a private app act for itself.")
@click.option("--description", default="")
@click.option("--logo", default="", metavar="URL")
@DB
@JSON
def create(
    workspace: str,
    name: str,
    redirect_uris: tuple[str, ...],
    scopes: tuple[str, ...],
    public: bool,
    client_credentials: bool,
    description: str,
    logo: str,
    db: Path,
    as_json: bool,
) -> None:
    """Register an app; prints the client id and the client secret, which is shown only once."""
    from weftline.cli.reach import reach

    asked = {
        "name": name,
        "redirectUris": list(redirect_uris),
        "allowedScopes": list(scopes),
        "visibility": "public" if public else "private",
        "allowsClientCredentials": client_credentials,
        "description": description,
        "logo": logo,
    }
    with reach(db, workspace=workspace, writes=True) as at:
        app = at.ensure().post("/oauth-apps", asked)
    click.echo(json.dumps(app, indent=2) if as_json else f"{app['clientId']}\n{app['clientSecret']}")


@apps.command("list")
@click.option("--workspace", metavar="SLUG")
@click.option("--registered", is_flag=True, help="Apps that registered themselves and belong to no workspace.")
@DB
@list_forms
def list_apps(workspace: str | None, registered: bool, db: Path, form: Form) -> None:
    """List a workspace's apps, or those that registered themselves, by their client ids."""
    from weftline.cli.reach import reach

    if registered == (workspace is not None):
        raise click.UsageError("Give --workspace or --registered.")
    with reach(db, workspace=workspace) as at:
        found = at.operate("GET", "registered-apps") if registered else at.get("/oauth-apps")
    show_list(found["apps"], form, id_field="clientId")


@apps.command()
@click.argument("client_id")
@DB
@JSON
def show(client_id: str, db: Path, as_json: bool) -> None:
    """Show an app: everything but its secret."""
    from weftline.cli.reach import named, reach

    with reach(db) as at:
        show_one(at.get(f"/oauth-apps/{named(client_id)}"), as_json=as_json)


@apps.command()
@click.argument("client_id")
@DB
@JSON
def delete(client_id: str, db: Path, as_json: bool) -> None:
    """Delete an app; everything that was given to it ends at once."""
    from weftline.cli.reach import named, reach

    with reach(db, writes=True) as at:
        at.call("DELETE", f"/oauth-apps/{named(client_id)}")
    show_done({"clientId": client_id, "deleted": True}, as_json=as_json)


@command.group()
def grants() -> None:
    """What users have allowed apps to do."""


@grants.command("list")
@click.option("--user", "email", required=True, metavar="EMAIL")
@DB
@list_forms
def list_grants(email: str, db: Path, form: Form) -> None:
    """List a user's grants."""
    from weftline.cli.reach import named, reach

    with reach(db) as at:
        show_list(at.operate("GET", f"users/{named(email)}/grants")["grants"], form)


@grants.command("delete")
@click.argument("grant_id")
@DB
@JSON
def delete_grant(grant_id: str, db: Path, as_json: bool) -> None:
    """End a grant with all its tokens, immediately."""
    from weftline.cli.reach import named, reach

    with reach(db, writes=True) as at:
        at.operate("DELETE", f"grants/{named(grant_id)}")
    show_done({"id": grant_id, "deleted": True}, as_json=as_json)
