"""`weftline calls`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON, show_all
from weftline.cli.target import URL, WORKSPACE, chosen_url


@click.command()
@click.argument("run_id", required=False, metavar="[RUN]")
@click.option("--in-doubt", is_flag=True, help="Calls of all runs that may or may not have happened.")
@URL
@WORKSPACE
@DB
@JSON
def command(
    run_id: str | None, in_doubt: bool, url: str | None, workspace: str | None, db: Path, as_json: bool
) -> None:
    """List the calls of a run, or those in doubt: a table on a terminal, otherwise their ids.

    Arguments and results are cut to fit; --json has all of them.

    The beginning of the run's id is enough.
    """
    from weftline.cli.call_lookup import find_calls
    from weftline.cli.terminal import ago, is_terminal, show_table

    if (run_id is None) is not in_doubt:
        raise click.UsageError("Name a run, or give --in-doubt.")
    found = find_calls(run_id, url=chosen_url(url), workspace=workspace, db=db)
    if as_json or not is_terminal():
        show_all(
            [{"ref": f"{one['runId']}/{one['toolUseId']}", **one} for one in found], id_field="ref", as_json=as_json
        )
        return
    rows = [
        (
            one["toolUseId"] if run_id else f"{one['runId']}/{one['toolUseId']}",
            one["name"],
            json.dumps(one["args"], ensure_ascii=False) if "args" in one else "",
            one.get("result") or "",
            one["how"] or one["state"],
            ago(one["openedAt"]),
        )
        for one in found
    ]
    show_table(("CALL", "TOOL", "ARGUMENTS", "RESULT", "STATE", "SINCE"), rows, whole=["CALL"])
