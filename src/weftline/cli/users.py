"""`weftline users`."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path

import click

from weftline.cli.output import DB, JSON, Form, list_forms, show_done, show_list, show_one

_PASSWORD = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
_MIN_CHARS = 10


@click.group()
def command() -> None:
    """People who sign in to give OAuth apps access to their workspaces."""


@command.command()
@click.option("--email", required=True)
@click.option("--workspace", "workspaces", multiple=True, required=True, metavar="SLUG", help="May be repeated.")
@_PASSWORD
@DB
@JSON
def create(email: str, workspaces: tuple[str, ...], password_stdin: bool, db: Path, as_json: bool) -> None:
    """Create a user. Without --password-stdin a password is generated and printed once."""
    from weftline.cli.reach import reach

    password, hashed = _password(password_stdin)
    asked = {"email": email, "password": hashed, "workspaces": list(workspaces)}
    with reach(db, writes=True) as at:
        identity = at.operate("POST", "users", body=asked)["id"]
    if as_json:
        click.echo(json.dumps({"id": identity, **({} if password_stdin else {"password": password})}))
    else:
        click.echo(identity if password_stdin else password)


@command.command("set-password")
@click.argument("email")
@_PASSWORD
@DB
@JSON
def set_password(email: str, password_stdin: bool, db: Path, as_json: bool) -> None:
    """Set a new password and sign the user out. Without --password-stdin one is generated and printed."""
    from weftline.cli.reach import named, reach

    password, hashed = _password(password_stdin)
    with reach(db, writes=True) as at:
        at.operate("PATCH", f"users/{named(email)}", body={"password": hashed})
    if as_json:
        click.echo(json.dumps({"email": email, **({} if password_stdin else {"password": password})}))
    elif not password_stdin:
        click.echo(password)


@command.command("list")
@click.option("--workspace", metavar="SLUG", help="Only its members.")
@DB
@list_forms
def list_users(workspace: str | None, db: Path, form: Form) -> None:
    """List the users."""
    from weftline.cli.reach import reach

    with reach(db) as at:
        show_list(at.operate("GET", "users", query={"workspace": workspace})["users"], form, id_field="email")


@command.command()
@click.argument("email")
@DB
@JSON
def show(email: str, db: Path, as_json: bool) -> None:
    """Show a user."""
    from weftline.cli.reach import named, reach

    with reach(db) as at:
        show_one(at.operate("GET", f"users/{named(email)}"), as_json=as_json)


@command.command()
@click.argument("email")
@click.option("--workspace", required=True, metavar="SLUG", help="Created if it does not exist.")
@DB
@JSON
def join(email: str, workspace: str, db: Path, as_json: bool) -> None:
    """Make a user a member of a workspace."""
    from weftline.cli.reach import named, reach

    with reach(db, writes=True) as at:
        at.operate("PUT", f"users/{named(email)}/workspaces/{named(workspace)}")
    show_done({"email": email, "workspace": workspace, "member": True}, as_json=as_json)


@command.command()
@click.argument("email")
@click.option("--workspace", required=True, metavar="SLUG")
@DB
@JSON
def leave(email: str, workspace: str, db: Path, as_json: bool) -> None:
    """Remove a user from a workspace and end what they allowed apps to do there."""
    from weftline.cli.reach import named, reach

    with reach(db, writes=True) as at:
        at.operate("DELETE", f"users/{named(email)}/workspaces/{named(workspace)}")
    show_done({"email": email, "workspace": workspace, "member": False}, as_json=as_json)


@command.command()
@click.argument("email")
@DB
@JSON
def delete(email: str, db: Path, as_json: bool) -> None:
    """Delete a user with everything they allowed apps to do."""
    from weftline.cli.reach import named, reach

    with reach(db, writes=True) as at:
        at.operate("DELETE", f"users/{named(email)}")
    show_done({"email": email, "deleted": True}, as_json=as_json)


def _password(from_stdin: bool) -> tuple[str, str]:
    """Returns the password and its hash. It is hashed here, as that takes a while and the server has other work."""
    from weftline.workspace.passwords import hash_password

    password = sys.stdin.readline().rstrip("\r\n") if from_stdin else secrets.token_urlsafe(15)
    if len(password) < _MIN_CHARS:
        raise click.UsageError(f"The password must have at least {_MIN_CHARS} characters.")
    return password, hash_password(password)
