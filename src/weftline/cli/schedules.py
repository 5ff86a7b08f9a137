"""`weftline schedules`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from weftline.cli.output import DB, JSON, Form, list_forms, show_list, show_warnings
from weftline.cli.resource import WORKSPACE

SCHEDULE = click.argument("schedule_id", metavar="SCHEDULE")


@click.group()
def command() -> None:
    """Runs that start at a given time, once or repeatedly."""


@command.command()
@WORKSPACE
@click.option("--name", required=True, help="Its name.")
@click.option("--agent", help="The agent that runs, by its id or slug.")
@click.option("--model", help="The model, if no agent is given.")
@click.option("--prompt", help="The prompt.")
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    help="The body of the request that creates such a run (JSON), or - for standard input.",
)
@click.option("--at", "at", metavar="TIME", help="Once, at this time with a time zone: 2030-01-31T12:00:00Z.")
@click.option("--cron", metavar="EXPRESSION", help="Minute, hour, day of month, month, day of week: '0 9 * * 1-5'.")
@click.option(
    "--timezone", metavar="NAME", help="Time zone of the cron expression, such as Europe/Berlin. UTC by default."
)
@click.option(
    "--catch-up",
    type=click.Choice(["skip", "once", "all"]),
    help="What to do about missed times: nothing, one run for all of them (default), or one for each.",
)
@DB
@JSON
def add(
    workspace: str,
    name: str,
    agent: str | None,
    model: str | None,
    prompt: str | None,
    file: Path | None,
    at: str | None,
    cron: str | None,
    timezone: str | None,
    catch_up: str | None,
    db: Path,
    as_json: bool,
) -> None:
    """Add a schedule and print its id.

    A running server warns of models and tools that it does not have.
    """
    from weftline.cli.reach import reach

    given = {
        "name": name,
        "spec": _spec(file, agentId=agent, modelId=model, prompt=prompt),
        "at": at,
        "cron": cron,
        "timezone": timezone,
        "catchUp": catch_up,
    }
    schedule = {field: value for field, value in given.items() if value is not None}
    with reach(db, workspace=workspace, writes=True) as reached:
        made = reached.post("/schedules", schedule)
    show_warnings(made)
    click.echo(json.dumps(made) if as_json else made["id"])


@command.command("list")
@WORKSPACE
@DB
@list_forms
def _list(workspace: str, db: Path, form: Form) -> None:
    """List a workspace's schedules: when each is due, and its last outcome."""
    from weftline.cli.reach import reach

    with reach(db, workspace=workspace) as at:
        found = at.get("/schedules")["schedules"]
    show_list(found, form, columns=_columns, headings=_HEADINGS)


_HEADINGS = ("ID", "NAME", "WHEN", "NEXT", "LAST")


def _columns(one: dict[str, Any]) -> dict[str, str]:
    return {
        "ID": one["id"],
        "NAME": one["name"],
        "WHEN": one["at"] or f"{one['cron']} {one['timezone']}",
        "NEXT": one["nextAt"] or ("done" if one["enabled"] else "paused"),
        "LAST": one["lastError"] or one["lastRunId"] or "",
    }


@command.command()
@SCHEDULE
@WORKSPACE
@DB
@JSON
def remove(schedule_id: str, workspace: str, db: Path, as_json: bool) -> None:
    """Remove a schedule and print its id. Its runs stay."""
    from weftline.cli.reach import named, reach

    with reach(db, workspace=workspace, writes=True) as at:
        at.call("DELETE", f"/schedules/{named(schedule_id)}")
    click.echo(json.dumps({"id": schedule_id, "deleted": True}) if as_json else schedule_id)


@command.command()
@SCHEDULE
@WORKSPACE
@DB
@JSON
def pause(schedule_id: str, workspace: str, db: Path, as_json: bool) -> None:
    """Switch a schedule off. Runs that it has started continue."""
    _switch(db, workspace, schedule_id, enabled=False, as_json=as_json)


@command.command()
@SCHEDULE
@WORKSPACE
@DB
@JSON
def resume(schedule_id: str, workspace: str, db: Path, as_json: bool) -> None:
    """Switch a schedule on again and print when it is due. It does not make up for missed times."""
    _switch(db, workspace, schedule_id, enabled=True, as_json=as_json)


@command.command()
@SCHEDULE
@WORKSPACE
@DB
@JSON
def run(schedule_id: str, workspace: str, db: Path, as_json: bool) -> None:
    """Start a run of a schedule now, on the running server, and print the run's id."""
    from weftline.cli.reach import named, reach

    with reach(db, workspace=workspace, writes=True) as at:
        made = at.post(f"/schedules/{named(schedule_id)}/run")["runId"]
    click.echo(json.dumps({"runId": made}) if as_json else made)


def _switch(db: Path, workspace: str, id: str, *, enabled: bool, as_json: bool) -> None:
    from weftline.cli.reach import named, reach

    with reach(db, workspace=workspace, writes=True) as at:
        made = at.call("PATCH", f"/schedules/{named(id)}", body={"enabled": enabled})
    click.echo(json.dumps(made) if as_json else made["nextAt"] or made["id"])


def _spec(file: Path | None, **given: str | None) -> dict[str, Any]:
    """Returns what to run: the file's fields, overridden by the options."""
    spec: Any = {}
    if file is not None:
        with click.open_file(str(file), encoding="utf-8") as source:
            try:
                spec = json.load(source)
            except ValueError as error:
                raise click.UsageError(f"{file} is not JSON: {error}") from None
        if not isinstance(spec, dict):
            raise click.UsageError(f"{file} is not a JSON object.")
    return {**spec, **{field: value for field, value in given.items() if value is not None}}
