"""`weftline awaits`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from weftline.cli.output import DB, Form, list_forms, show_list
from weftline.cli.target import URL, WORKSPACE, chosen_url
from weftline.kernel.control import AwaitKind


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
@list_forms
def list_awaits(
    kind: str | None,
    run: str | None,
    agent: str | None,
    name: str | None,
    url: str | None,
    workspace: str | None,
    db: Path,
    form: Form,
) -> None:
    """List what is open, oldest runs first, with the ids to answer with."""
    from weftline.cli.await_lookup import open_awaits

    filters = {"kind": kind, "run": run, "agent": agent, "name": name}
    found = open_awaits(chosen_url(url), workspace, db, filters)
    show_list(found, form, id_field="ref", columns=_columns, headings=_HEADINGS)


_HEADINGS = ("AWAIT", "KIND", "TOOL", "SINCE", "QUESTION")


def _columns(one: dict[str, Any]) -> dict[str, str]:
    from weftline.cli.terminal import ago

    return {
        "AWAIT": one["ref"],
        "KIND": one["kind"],
        "TOOL": one["name"],
        "SINCE": ago(one["openedAt"]),
        "QUESTION": one["question"],
    }
