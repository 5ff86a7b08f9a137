"""`weftline answer`."""

from __future__ import annotations

from pathlib import Path

import click

from weftline.cli.output import DB, JSON
from weftline.cli.respond import AWAIT, respond
from weftline.cli.where import URL, WORKSPACE


@click.command()
@AWAIT
@click.argument("values", nargs=-1, required=True, metavar="ANSWER...")
@URL
@WORKSPACE
@DB
@JSON
def command(ref: str, values: tuple[str, ...], url: str | None, workspace: str | None, db: Path, as_json: bool) -> None:
    """Answer a question of a run, comment on its plan, or say what the result of a call was that is in doubt.

    AWAIT is as `weftline awaits` prints it, or a run that asks one thing only. Give several answers where several
    options may be chosen, and one to each where several questions are asked.
    """
    value = values[0] if len(values) == 1 else list(values)
    respond(ref, {"outcome": "answered", "value": value}, url=url, workspace=workspace, db=db, as_json=as_json)
