"""`weftline init`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import JSON


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@JSON
def command(folder: Path, as_json: bool) -> None:
    """Write a small folder of agents to begin with: an agent, a tool, and a model that needs no network and no key.

    A folder that has anything in it is left alone.
    """
    from weftline.threads.starting import start

    files = [str(one) for one in start(folder)]
    if as_json:
        click.echo(json.dumps(files, indent=2))
        return
    for one in files:
        click.echo(one)
    click.echo(f"Next: weftline check {folder}, weftline info {folder}", err=True)
