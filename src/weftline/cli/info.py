"""`weftline info`."""

from __future__ import annotations

import json

import click

from weftline.cli.check import FOLDER
from weftline.cli.output import JSON


@click.command()
@click.argument("folder", type=FOLDER)
@JSON
def command(folder: str, as_json: bool) -> None:
    """Show what a folder of agents has: each definition with its file, and what each agent can reach.

    What is wrong with it, `weftline check` says.
    """
    from msgspec import to_builtins

    from weftline.cli.terminal import show_table
    from weftline.threads.overview import overview
    from weftline.threads.project import read_project

    found = overview(read_project(folder, only_checking=True))
    if as_json:
        click.echo(json.dumps(to_builtins(found), indent=2))
        return
    show_table(("KIND", "NAME", "FILE"), [(one.kind, one.name, f"{one.file}:{one.line}") for one in found.found])
    for agent in found.agents:
        click.echo(f"\nagent {agent.name}")
        for what, names in agent.reaches.items():
            click.echo(f"  {what:<8} {', '.join(names)}")
