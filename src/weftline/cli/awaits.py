"""`weftline awaits`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from weftline.cli.output import DB, JSON, show_all
from weftline.cli.target import URL, WORKSPACE, chosen_url
from weftline.kernel.words import AwaitKind


class _ListsByDefault(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListsByDefault)
def command() -> None:
    """What runs ask people: on the server that --url names, or in a store on this machine.

    Answer with `weftline approve`, `deny` and `answer`.
    """


@command.command("list")
@click.option("--kind", type=click.Choice(get_args(AwaitKind)), help="Only these.")
@click.option("--run", metavar="RUN", help="Only questions of this run and its subagents.")
@click.option("--agent", metavar="NAME", help="Only questions of this agent's runs.")
@click.option("--name", metavar="TOOL", help="Only about calls of this tool.")
@URL
@WORKSPACE
@DB
@JSON
def list_awaits(
    kind: str | None,
    run: str | None,
    agent: str | None,
    name: str | None,
    url: str | None,
    workspace: str | None,
    db: Path,
    as_json: bool,
) -> None:
    """List what is open, oldest runs first: a table on a terminal, otherwise the ids to answer with."""
    from weftline.cli.await_lookup import open_awaits
    from weftline.cli.terminal import ago, is_terminal, show_table

    filters = {"kind": kind, "run": run, "agent": agent, "name": name}
    found = open_awaits(chosen_url(url), workspace, db, filters)
    if as_json or not is_terminal():
        show_all(found, id_field="ref", as_json=as_json)
        return
    rows = [(one["ref"], one["kind"], one["name"], ago(one["openedAt"]), one["question"]) for one in found]
    show_table(("AWAIT", "KIND", "TOOL", "SINCE", "QUESTION"), rows, whole=["AWAIT"])
