"""`weftline answer`."""

from __future__ import annotations

from pathlib import Path

import click

from weftline.cli.output import DB, JSON
from weftline.cli.target import URL, WORKSPACE, chosen_url


@click.command()
@click.argument("ref", metavar="AWAIT")
@click.argument("values", nargs=-1, required=True, metavar="ANSWER...")
@URL
@WORKSPACE
@DB
@JSON
def command(ref: str, values: tuple[str, ...], url: str | None, workspace: str | None, db: Path, as_json: bool) -> None:
    """Answer a run's question, comment on its plan, or give the result of a call in doubt.

    AWAIT is an id as `weftline awaits` prints it, or a run that asks only one thing. Give several answers if several
    options may be chosen, and one for each if there are several questions.
    """
    from weftline.cli.await_lookup import respond

    value = values[0] if len(values) == 1 else list(values)
    respond(
        ref, {"outcome": "answered", "value": value}, url=chosen_url(url), workspace=workspace, db=db, as_json=as_json
    )
