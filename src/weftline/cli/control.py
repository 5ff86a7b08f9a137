"""`weftline runs pause`, `resume`, `steer` and `follow-up`: input of people for a run in progress."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
    server = chosen_url(url)
    if server is not None:
        response = asyncio.run(_at_server(server, workspace, run_id, verb, body))
    else:
        from weftline.cli.admin import administer

        run = asyncio.run(_completed(run_id, workspace, db))
        response = administer(db, f"runs.{verb}", run=run, body=body, workspace=workspace)
    click.echo(json.dumps(response) if as_json else done or response["id"])


async def _at_server(url: str, workspace: str | None, start: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    from weftline.cli.run_lookup import ServerRuns
    from weftline.cli.target import connected

    async with connected(url, workspace) as client:
        run_id = await ServerRuns(client).complete(start)
        path = f"/agent-runs/{quote(run_id, safe='')}/{_PATHS[verb]}"
        return json.loads(await client.http.call("POST", path, body=json.dumps(body).encode()))


async def _completed(start: str, workspace: str | None, db: Path) -> str:
    from weftline.cli.run_lookup import LocalRuns
    from weftline.store import open_for_reading

    store = open_for_reading(db)
    try:
        return await LocalRuns(store, workspace=workspace).complete(start)
    finally:
        await store.close()
