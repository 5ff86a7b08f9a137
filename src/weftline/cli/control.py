"""`weftline runs pause`, `resume`, `steer` and `follow-up`: input of people for a run in progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from weftline.cli.output import DB, JSON
from weftline.cli.target import URL, WORKSPACE, chosen_url

_RUN = click.argument("run_id")
_LABELS = click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Kept in the log; may be repeated."
)


@click.command()
@_RUN
@click.option("--reason", default="", metavar="TEXT", help="Why.")
@_LABELS
@URL
@WORKSPACE
@DB
@JSON
def pause(
    run_id: str, reason: str, labels: tuple[str, ...], url: str | None, workspace: str | None, db: Path, as_json: bool
) -> None:
    """Finish what a run is doing, and start nothing new until it is resumed."""
    body = {"reason": reason, "labels": _labels(labels)}
    _send(run_id, "pause", body, "paused", url=url, workspace=workspace, db=db, as_json=as_json)


@click.command()
@_RUN
@click.option("--notes", default="", metavar="TEXT", help="The reason, for the log.")
@click.option(
    "--message", "messages", multiple=True, metavar="TEXT", help="What the model reads next; may be repeated."
)
@_LABELS
@URL
@WORKSPACE
@DB
@JSON
def resume(
    run_id: str,
    notes: str,
    messages: tuple[str, ...],
    labels: tuple[str, ...],
    url: str | None,
    workspace: str | None,
    db: Path,
    as_json: bool,
) -> None:
    """Let a paused run continue."""
    body = {"notes": notes, "messages": list(messages), "labels": _labels(labels)}
    _send(run_id, "resume", body, "resumed", url=url, workspace=workspace, db=db, as_json=as_json)


@click.command()
@_RUN
@click.argument("text")
@_LABELS
@URL
@WORKSPACE
@DB
@JSON
def steer(
    run_id: str, text: str, labels: tuple[str, ...], url: str | None, workspace: str | None, db: Path, as_json: bool
) -> None:
    """Send a message to a run, to be read at its next turn. Calls that have not started by then are skipped."""
    body = {"text": text, "mode": "steer", "labels": _labels(labels)}
    _send(run_id, "message", body, "", url=url, workspace=workspace, db=db, as_json=as_json)


@click.command("follow-up")
@_RUN
@click.argument("text")
@_LABELS
@URL
@WORKSPACE
@DB
@JSON
def follow_up(
    run_id: str, text: str, labels: tuple[str, ...], url: str | None, workspace: str | None, db: Path, as_json: bool
) -> None:
    """Send a message to a run, to be read when it would otherwise end."""
    body = {"text": text, "mode": "follow_up", "labels": _labels(labels)}
    _send(run_id, "message", body, "", url=url, workspace=workspace, db=db, as_json=as_json)


COMMANDS = (pause, resume, steer, follow_up)

_PATHS = {"pause": "pause", "resume": "resume", "message": "messages"}


def _labels(given: tuple[str, ...]) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    wrong = next((one for one, (name, equals, _) in zip(given, pairs, strict=True) if not name or not equals), None)
    if wrong is not None:
        raise click.BadParameter(f"{wrong!r} is not NAME=VALUE", param_hint="--label")
    return {name: value for name, _, value in pairs}


def _send(
    run_id: str,
    verb: str,
    body: dict[str, Any],
    done: str,
    *,
    url: str | None,
    workspace: str | None,
    db: Path,
    as_json: bool,
) -> None:
    """Sends the input, and prints `done` or the id of the message.

    Without --url, it goes to the process that has the store open.
    """
    from weftline.cli.reach import reach
    from weftline.cli.run_lookup import path_of, whole_id

    with reach(db, url=chosen_url(url), workspace=workspace, writes=True) as at:
        response = at.post(f"{path_of(whole_id(at, run_id))}/{_PATHS[verb]}", body)
    click.echo(json.dumps(response) if as_json else done or response["id"])
