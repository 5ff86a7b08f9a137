"""`weftline deny`."""

from __future__ import annotations

from pathlib import Path

import click

from weftline.cli.output import DB, JSON
from weftline.cli.target import URL, WORKSPACE, chosen_url


@click.command()
@click.argument("ref", metavar="AWAIT")
@click.argument("reason", default="")
@URL
@WORKSPACE
@DB
@JSON
def command(ref: str, reason: str, url: str | None, workspace: str | None, db: Path, as_json: bool) -> None:
    """Deny the call that a run asks about, or decline to answer its question. The model reads the REASON.

    AWAIT is an id as `weftline awaits` prints it, or a run that asks only one thing.
    """
    from weftline.cli.await_lookup import respond

    respond(
        ref, {"outcome": "denied", "reason": reason}, url=chosen_url(url), workspace=workspace, db=db, as_json=as_json
    )
