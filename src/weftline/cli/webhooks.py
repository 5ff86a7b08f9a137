"""`weftline webhooks`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from weftline.cli.output import DB, JSON, Form, list_forms, show_list
from weftline.cli.resource import NEW_WORKSPACE, WORKSPACE, add_commands

_NEWEST = 200
"""How many deliveries are shown."""


@click.group()
def command() -> None:
    """Webhooks that are called when runs end or ask people."""


@command.command()
@NEW_WORKSPACE
@click.option("--url", required=True, help="Where to post deliveries.")
@click.option(
    "--event",
    "events",
    multiple=True,
    type=click.Choice(["succeeded", "failed", "cancelled", "waiting"]),
    help="What to report: outcomes, or `waiting` when a run asks people; may be repeated. All outcomes by default.",
)
@DB
@JSON
def create(workspace: str, url: str, events: tuple[str, ...], db: Path, as_json: bool) -> None:
    """Create a webhook; prints its id and the secret that signs its deliveries, which is shown only once."""
    from weftline.cli.reach import reach

    asked: dict[str, Any] = {"url": url, **({"events": list(events)} if events else {})}
    with reach(db, workspace=workspace, writes=True) as at:
        made = at.ensure().post("/webhooks", asked)
    click.echo(json.dumps(made) if as_json else f"{made['id']} {made['secret']}")


@command.command()
@click.argument("webhook_id")
@WORKSPACE
@click.option("--status", type=click.Choice(["pending", "delivered", "failed"]), help="Those alone.")
@DB
@list_forms
def deliveries(webhook_id: str, workspace: str, status: str | None, db: Path, form: Form) -> None:
    """Show past and pending deliveries, newest first."""
    from weftline.cli.reach import named, reach

    with reach(db, workspace=workspace) as at:
        found = at.get(f"/webhooks/{named(webhook_id)}/deliveries", status=status, limit=_NEWEST)["deliveries"]
    show_list(found, form, columns=_columns, headings=_HEADINGS)


_HEADINGS = ("DELIVERY", "RUN", "STATUS", "ATTEMPTS", "LAST ERROR")


def _columns(one: dict[str, Any]) -> dict[str, str]:
    return {
        "DELIVERY": one["id"],
        "RUN": one["runId"],
        "STATUS": one["status"],
        "ATTEMPTS": str(one["attempts"]),
        "LAST ERROR": one["lastError"],
    }


add_commands(command, kind="webhooks", show=False, paged=False)
