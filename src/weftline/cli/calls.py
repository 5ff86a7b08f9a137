"""`weftline calls`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from weftline.cli.output import DB, Form, list_forms, show_list
from weftline.cli.target import URL, WORKSPACE, chosen_url


@click.command()
@click.argument("run_id", required=False, metavar="[RUN]")
@click.option("--in-doubt", is_flag=True, help="Calls of all runs that may or may not have happened.")
@URL
@WORKSPACE
@DB
@list_forms
def command(run_id: str | None, in_doubt: bool, url: str | None, workspace: str | None, db: Path, form: Form) -> None:
    """List the calls of a run, or those in doubt.

    Arguments and results are cut to fit the terminal; --json has all of them.

    The beginning of the run's id is enough.
    """
    from weftline.cli.reach import reach
    from weftline.cli.run_lookup import path_of, whole_id

    if (run_id is None) is not in_doubt:
        raise click.UsageError("Name a run, or give --in-doubt.")
    with reach(db, url=chosen_url(url), workspace=workspace) as at:
        if run_id is not None:
            found = [*at.items(f"{path_of(whole_id(at, run_id))}/calls", "calls", contents="true")]
        else:
            found = [call for place in at.places() for call in place.items("/calls", "calls", contents="true")]
    named = [{"ref": f"{one['runId']}/{one['toolUseId']}", **one} for one in found]
    of_one_run = run_id is not None
    show_list(
        named,
        form,
        id_field="ref",
        columns=lambda one: _columns(one, of_one_run=of_one_run),
        headings=("CALL", "TOOL", "ARGUMENTS", "RESULT", "STATE", "SINCE"),
    )


def _columns(one: dict[str, Any], *, of_one_run: bool) -> dict[str, str]:
    from weftline.cli.terminal import ago

    return {
        "CALL": one["toolUseId"] if of_one_run else one["ref"],
        "TOOL": one["name"],
        "ARGUMENTS": json.dumps(one["args"], ensure_ascii=False) if "args" in one else "",
        "RESULT": one.get("result") or "",
        "STATE": one["how"] or one["state"],
        "SINCE": ago(one["openedAt"]),
    }
