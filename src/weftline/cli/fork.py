"""`weftline fork`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON
from weftline.cli.target import URL, WORKSPACE, chosen_url


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--turn", type=click.IntRange(0), required=True, metavar="N", help="The first turn to run again, counted from 0."
)
@click.option("--model", metavar="ID", help="Another model.")
@click.option("--system", metavar="TEXT", help="Another system prompt.")
@click.option("--reasoning", metavar="LEVEL", help="Another reasoning level: a name, or 0 to 100.")
@click.option("--message", metavar="TEXT", help="What the model reads before that turn.")
@URL
@WORKSPACE
@DB
@JSON
def command(
    run_id: str,
    turn: int,
    model: str | None,
    system: str | None,
    reasoning: str | None,
    message: str | None,
    url: str | None,
    workspace: str | None,
    db: Path,
    as_json: bool,
) -> None:
    """Continue from a turn of a RUN that has ended, as a new run, and print its id.

    Nothing before that turn is repeated. Without --url this asks the server that has the store open. `weftline compare`
    shows both side by side.
    """
    level = int(reasoning) if reasoning is not None and reasoning.isdigit() else reasoning
    asked = {"turn": turn, "modelId": model, "systemPrompt": system, "reasoningLevel": level, "message": message}
    changes = {name: value for name, value in asked.items() if value is not None}
    from weftline.cli.reach import reach
    from weftline.cli.run_lookup import path_of, whole_id

    with reach(db, url=chosen_url(url), workspace=workspace, writes=True) as at:
        forked = at.post(f"{path_of(whole_id(at, run_id))}/fork", changes, once=True)["runId"]
    click.echo(json.dumps({"run": forked, "turn": turn}) if as_json else forked)
