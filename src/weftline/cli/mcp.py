"""`weftline mcp`: logins at MCP servers that require one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

from weftline.cli.output import DB, JSON, Form, list_forms, show_done, show_list

WORKSPACE = click.option("--workspace", required=True, metavar="SLUG", help="Whose runs use the login.")


@click.group()
def command() -> None:
    """Logins for MCP servers that runs use."""


@command.command()
@click.argument("url")
@WORKSPACE
@click.option("--client-id", metavar="ID", help="The id of an app that is already registered there.")
@click.option("--client-secret-stdin", is_flag=True, help="Read the secret of that app from standard input.")
@click.option("--client-metadata", metavar="URL", help="The URL of a document that describes Weftline to the server.")
@click.option("--scope", multiple=True, metavar="SCOPE", help="Ask for this scope too; can be repeated.")
@click.option("--port", default=0, metavar="N", help="The browser's redirect port; any free port by default.")
@click.option("--paste", is_flag=True, help="For a browser elsewhere: paste the address that it is redirected to.")
@DB
@JSON
def login(
    url: str,
    workspace: str,
    client_id: str | None,
    client_secret_stdin: bool,
    client_metadata: str | None,
    scope: tuple[str, ...],
    port: int,
    paste: bool,
    db: Path,
    as_json: bool,
) -> None:
    """Log in to an MCP server: prints a URL to open in a browser, and stores the login.

    Runs of the workspace that name this URL as an mcp tool use the login from then on. It is stored encrypted, and
    refreshed as long as the server allows. Another login at the same URL keeps the scopes of the first and adds those
    of --scope; log out to start over.
    """
    from msgspec import to_builtins

    from weftline.cli.reach import named, reach
    from weftline.errors import Unavailable, WeftlineError
    from weftline.text.redaction import redact_url

    if client_secret_stdin and client_id is None:
        raise click.UsageError("--client-secret-stdin needs --client-id.")
    try:
        from weftline.tools.mcp.signing_in import LoginFailed, log_in
    except ImportError:
        raise Unavailable("Logging in needs the extra `mcp`: pip install '.[mcp]' in a checkout of Weftline.") from None
    from weftline.cli.browser import Loopback, PastedRedirect

    # This also reports a typo before a browser is opened.
    path = f"workspaces/{named(workspace)}/mcp-logins"
    with reach(db) as at:
        granted = at.operate("GET", f"{path}/scope", query={"url": url})["scope"]
    wanted = " ".join(dict.fromkeys(" ".join([granted or "", *scope]).split())) or None
    secret = sys.stdin.readline().strip() if client_secret_stdin else None

    async def made() -> object:
        async with PastedRedirect(port) if paste else Loopback(port) as person:
            done = await log_in(
                url,
                person,
                client_id=client_id,
                client_secret=secret,
                client_metadata_url=client_metadata,
                scope=wanted,
            )
            return to_builtins(done)

    try:
        done = asyncio.run(made())
    except LoginFailed as error:
        raise WeftlineError(f"Could not log in to {urlsplit(url).hostname}: {error}", code="unavailable") from None
    with reach(db, writes=True) as at:
        at.operate("PUT", path, body=done)
    click.echo(f"Logged in. Runs of {workspace} that name this URL use the login.", err=True)
    show_done({"url": redact_url(url), "workspace": workspace, "loggedIn": True}, as_json=as_json)


@command.command("list")
@WORKSPACE
@DB
@list_forms
def list_logins(workspace: str, db: Path, form: Form) -> None:
    """List the servers that a workspace is logged in to, by their URLs."""
    from weftline.cli.reach import named, reach

    with reach(db) as at:
        found = at.operate("GET", f"workspaces/{named(workspace)}/mcp-logins")["logins"]
    show_list(found, form, id_field="url")


@command.command()
@click.argument("url")
@WORKSPACE
@DB
@JSON
def logout(url: str, workspace: str, db: Path, as_json: bool) -> None:
    """Delete a login here. The consent itself can only be revoked at the MCP server."""
    from weftline.cli.reach import named, reach
    from weftline.text.redaction import redact_url

    with reach(db, writes=True) as at:
        at.operate("DELETE", f"workspaces/{named(workspace)}/mcp-logins", query={"url": url})
    show_done({"url": redact_url(url), "workspace": workspace, "loggedIn": False}, as_json=as_json)
