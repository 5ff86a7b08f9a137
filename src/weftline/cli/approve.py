"""`weftline approve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import click

from weftline.cli.output import DB, JSON
from weftline.cli.target import URL, WORKSPACE, chosen_url


@click.command()
@click.argument("ref", metavar="AWAIT")
@click.option(
    "--args",
    "args",
    metavar="JSON",
    help="All arguments of the call, or another plan, instead of those shown.",
)
@click.option("--comment", metavar="TEXT", help="A comment on a plan, for the model to read.")
@click.option("--remember", is_flag=True, help="Also allow later calls of the same tool in this run.")
@URL
@WORKSPACE
@DB
@JSON
def command(
    ref: str,
    args: str | None,
    comment: str | None,
    remember: bool,
    url: str | None,
    workspace: str | None,
    db: Path,
    as_json: bool,
) -> None:
    """Approve the call that a run asks about, or its plan.

    AWAIT is an id as `weftline awaits` prints it, or a run that asks only one thing.
    """
    from weftline.cli.await_lookup import respond

    answer: dict[str, Any] = {"outcome": "approved"}
    if args is not None:
        answer["args"] = _object(args)
    if comment:
        answer["reason"] = comment
    if remember:
        answer["remember"] = True
    respond(ref, answer, url=chosen_url(url), workspace=workspace, db=db, as_json=as_json)


def _object(text: str) -> dict[str, Any]:
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="--args") from None
    if not isinstance(value, dict):
        raise click.BadParameter("must be a JSON object", param_hint="--args")
    return cast("dict[str, Any]", value)
