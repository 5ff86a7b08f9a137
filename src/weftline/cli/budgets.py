"""`weftline budgets`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from weftline.cli.output import DB, JSON, Form, list_forms, show_list
from weftline.cli.resource import WORKSPACE

AGENT = click.option("--agent", help="The budget of an agent, by its id or slug.")
SESSION = click.option("--session", help="The budget of a session, by its id.")
RUN = click.option("--run", help="The budget of a run that was started with one, by its id.")


@click.group()
def command() -> None:
    """Limits on spending, and what was spent."""


@command.command("set")
@WORKSPACE
@AGENT
@SESSION
@RUN
@click.option("--usd", type=float, metavar="DOLLARS", help="What model calls may cost.")
@click.option("--tokens", type=int, metavar="COUNT", help="How many tokens models may read and write.")
@click.option("--seconds", type=float, metavar="SECONDS", help="How long model and tool calls may take.")
@click.option("--calls", type=int, metavar="COUNT", help="How many calls of tools may be made.")
@click.option("--per", type=click.Choice(["day", "month"]), help="Per day or month (UTC) instead of in total.")
@click.option(
    "--on-exceeded",
    type=click.Choice(["final_turn", "stop", "ask"]),
    default="final_turn",
    help="What a run does if its next call would exceed the limit: answer in one more turn, fail, or ask a person.",
)
@DB
@JSON
def _set(
    workspace: str,
    agent: str | None,
    session: str | None,
    run: str | None,
    usd: float | None,
    tokens: int | None,
    seconds: float | None,
    calls: int | None,
    per: str | None,
    on_exceeded: str,
    db: Path,
    as_json: bool,
) -> None:
    """Replace the limits of a workspace, an agent, a session or a run.

    A run that waits because a call did not fit continues if its limit is raised.
    """
    given = {"usd": usd, "tokens": tokens, "seconds": seconds, "calls": calls}
    limits = [
        {"unit": unit, "limit": amount, "period": per or "total", "onExceeded": on_exceeded}
        for unit, amount in given.items()
        if amount is not None
    ]
    if not limits:
        raise click.UsageError("Give at least one of --usd, --tokens, --seconds and --calls.")
    _replace(db, workspace, {"agent": agent, "thread": session, "run": run}, limits, as_json=as_json)


@command.command()
@WORKSPACE
@AGENT
@SESSION
@RUN
@DB
@JSON
def clear(workspace: str, agent: str | None, session: str | None, run: str | None, db: Path, as_json: bool) -> None:
    """Remove the limits of a workspace, an agent or a session; a run then has those that it was started with."""
    _replace(db, workspace, {"agent": agent, "thread": session, "run": run}, [], as_json=as_json)


@command.command("list")
@WORKSPACE
@click.option("--run", help="Only budgets that apply to this run, the nearest first.")
@DB
@list_forms
def _list(workspace: str, run: str | None, db: Path, form: Form) -> None:
    """List the budgets of a workspace: each limit, what is spent, reserved and left."""
    from weftline.cli.reach import named, reach

    with reach(db, workspace=workspace) as at:
        found = at.get("/budgets" if run is None else f"/agent-runs/{named(run)}/budgets")["budgets"]
    if form != "json":
        found = (line for one in found for line in (_lines(one) if form == "columns" else [{"id": _name(one)}]))
    show_list(found, form, columns=lambda line: {name.upper(): str(value) for name, value in line.items()})


def _lines(budget: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for limit in budget["limits"]:
        yield {
            "id": _name(budget),
            "level": budget["level"],
            "unit": limit["unit"],
            "period": limit["period"],
            "limit": limit["limit"],
            "spent": limit["spent"],
            "reserved": limit["reserved"],
            "remaining": limit["remaining"],
            "onExceeded": limit["onExceeded"],
        }


def _name(budget: dict[str, Any]) -> str:
    """Returns the id; empty for a workspace's budget."""
    return budget["level"] if budget["id"] is None else budget["id"]


def _replace(
    db: Path, workspace: str, of: dict[str, str | None], limits: list[dict[str, Any]], *, as_json: bool
) -> None:
    """Replaces the limits. `of` has the id of the agent, session or run by its level; empty for the workspace."""
    from weftline.cli.reach import reach

    given = [(level, id) for level, id in of.items() if id is not None]
    if len(given) > 1:
        raise click.UsageError("Give one of --agent, --session and --run.")
    about = {"level": given[0][0], "id": given[0][1]} if given else {"level": "workspace"}
    with reach(db, workspace=workspace, writes=True) as at:
        made = at.call("PUT", "/budgets", body={**about, "limits": limits})
    click.echo(json.dumps(made) if as_json else _name(made))
