"""`weftline retention`."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import click

from weftline.cli.output import DB, JSON

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@click.group()
def command() -> None:
    """Remove old logs. Nothing is removed unless you ask for it."""


@command.command()
@click.option("--older-than", required=True, metavar="AGE", help="Such as 90d, 12h or 30m.")
@click.option("--workspace", metavar="SLUG", help="Only runs of this workspace.")
@DB
@JSON
def run(older_than: str, workspace: str | None, db: Path, as_json: bool) -> None:
    """Remove the logs of runs that ended longer ago than a given time.

    Each keeps its row and its last entry, so that its snapshot still says how it ended; a reader of its stream gets a
    `gap` event for what is gone. The file shrinks by what that frees. Prints how many runs had something to remove.
    """
    from weftline.cli.reach import reach
    from weftline.cli.vacuum import shrink

    match = re.fullmatch(r"(\d{1,9})([smhdw])", older_than)
    if match is None:
        raise click.BadParameter("give a number and one of s, m, h, d, w", param_hint="--older-than")
    before = time.time_ns() // 1000 - int(match[1]) * _UNITS_S[match[2]] * 1_000_000
    after, trimmed = 0, 0
    with reach(db, writes=True) as at:
        while True:
            asked = {"before": before, "after": after, "workspace": workspace}
            done = at.operate("POST", "store/trim", body=asked)
            after, trimmed = done["after"], trimmed + done["runs"]
            if not after:
                break
        shrink(at)
    click.echo(json.dumps({"runs": trimmed}) if as_json else trimmed)
