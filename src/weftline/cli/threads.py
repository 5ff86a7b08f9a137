"""`weftline threads`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from weftline.cli.output import DB, JSON, Form, list_forms, show_list, show_warnings
from weftline.cli.resource import WORKSPACE

THREAD = click.argument("thread_id", metavar="THREAD")


@click.group()
def command() -> None:
    """Conversations that last, with an agent, values and variables."""


@command.command()
@WORKSPACE
@click.option("--agent", required=True, help="The agent, by its id or slug.")
@click.option("--user", help="Whose account's variables it has.")
@click.option("--name", help="Its name.")
@click.option("--tag", "tags", multiple=True, help="A tag by which it is found; may be repeated.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable, which is a secret.")
@click.option("--value", "values", multiple=True, metavar="KEY=JSON", help="A value that its tools find.")
@DB
@JSON
def create(
    workspace: str,
    agent: str,
    user: str | None,
    name: str | None,
    tags: tuple[str, ...],
    env: tuple[str, ...],
    values: tuple[str, ...],
    db: Path,
    as_json: bool,
) -> None:
    """Create a thread and print its id."""
    from weftline.cli.reach import reach

    given: dict[str, Any] = {
        "agentId": agent,
        "userId": user,
        "name": name,
        "tags": list(tags),
        "env": dict(_pair(one, "--env") for one in env),
        "values": {key: _json(text) for key, text in (_pair(one, "--value") for one in values)},
    }
    with reach(db, workspace=workspace, writes=True) as at:
        made = at.post("/threads", {field: value for field, value in given.items() if value})
    show_warnings(made)
    click.echo(json.dumps(made) if as_json else made["id"])


@command.command("list")
@WORKSPACE
@click.option("--agent", help="Created with this agent.")
@click.option("--user", help="Of this user.")
@click.option("--tag", help="With this tag.")
@click.option("--status", type=click.Choice(["active", "terminated"]), help="Only these.")
@DB
@list_forms
def _list(
    workspace: str,
    agent: str | None,
    user: str | None,
    tag: str | None,
    status: str | None,
    db: Path,
    form: Form,
) -> None:
    """List the threads of a workspace, newest first."""
    from weftline.cli.reach import reach

    given = {"agentId": agent, "userId": user, "tag": tag, "status": status, "limit": "200"}
    asked = {field: value for field, value in given.items() if value is not None}
    found: list[dict[str, Any]] = []
    with reach(db, workspace=workspace) as at:
        while True:
            page = at.get(f"/threads?{urlencode(asked)}")
            found += page["threads"]
            if page["nextCursor"] is None:
                break
            asked["cursor"] = page["nextCursor"]
    show_list(found, form, columns=_columns, headings=("ID", "AGENT", "USER", "NAME", "STATUS", "LAST USED"))


def _columns(one: dict[str, Any]) -> dict[str, str]:
    return {
        "ID": one["id"],
        "AGENT": one["agentId"] or "",
        "USER": one["userId"] or "",
        "NAME": one["name"],
        "STATUS": one["status"],
        "LAST USED": one["lastUsedAt"],
    }


@command.command()
@THREAD
@WORKSPACE
@DB
@JSON
def show(thread_id: str, workspace: str, db: Path, as_json: bool) -> None:
    """Show a thread with its values and variables. Secrets are only listed."""
    from weftline.cli.reach import named, reach
    from weftline.cli.terminal import clean

    with reach(db, workspace=workspace) as at:
        path = f"/threads/{named(thread_id)}"
        thread = at.get(path)
        values = at.get(f"{path}/values")["values"]
        env = at.get(f"{path}/env")["env"]
    if as_json:
        click.echo(json.dumps({**thread, "values": values, "env": env}))
        return
    for field, value in thread.items():
        click.echo(clean(f"{field:<14}{', '.join(thread['tags']) if field == 'tags' else value}"))
    for one in values:
        click.echo(clean(f"value {one['key']} = {json.dumps(one['value'], ensure_ascii=False)}"))
    for one in env:
        shown = one.get("value", "(secret)")
        click.echo(clean(f"variable {one['name']} = {shown}"))


@command.command()
@THREAD
@WORKSPACE
@DB
@JSON
def end(thread_id: str, workspace: str, db: Path, as_json: bool) -> None:
    """Terminate a thread and print its id: its runs are cancelled, and it takes nothing more."""
    from weftline.cli.reach import named, reach

    with reach(db, workspace=workspace, writes=True) as at:
        at.call("DELETE", f"/threads/{named(thread_id)}")
    click.echo(json.dumps({"id": thread_id, "status": "terminated"}) if as_json else thread_id)


def _pair(given: str, option: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals:
        raise click.UsageError(f"{option} {given}: give a name and a value, such as NAME=VALUE.")
    return name, value


def _json(text: str) -> Any:
    """Returns the JSON that this is, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
