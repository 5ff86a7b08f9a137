"""`weftline grants`."""

from __future__ import annotations

from pathlib import Path

import click

from weftline.cli.output import DB, JSON, show_all
from weftline.cli.target import URL, WORKSPACE, chosen_url


@click.command()
@click.argument("run_id", metavar="RUN")
@URL
@WORKSPACE
@DB
@JSON
def command(run_id: str, url: str | None, workspace: str | None, db: Path, as_json: bool) -> None:
    """List what people allowed a run to do: a table on a terminal, otherwise the ids of the awaits.

    With --json each has the exact arguments that were approved, whether they were edited, by whom and when, when it
    expires, and which calls used it. The beginning of the run's id is enough.
    """
    from weftline.cli.call_lookup import find_grants
    from weftline.cli.terminal import ago, is_terminal, show_table

    found = find_grants(run_id, url=chosen_url(url), workspace=workspace, db=db)
    if as_json or not is_terminal():
        show_all([{"ref": f"{one['runId']}/{one['awaitId']}", **one} for one in found], id_field="ref", as_json=as_json)
        return
    rows = [
        (
            f"{one['runId']}/{one['awaitId']}",
            one["name"],
            one["byName"] or one["by"],
            "yes" if one["edited"] else "no",
            one["digest"][:8],
            ", ".join(use["toolUseId"] for use in one["used"]) or "not used",
            ago(one["at"]),
        )
        for one in found
    ]
    show_table(("GRANT", "TOOL", "BY", "EDITED", "DIGEST", "USED BY", "SINCE"), rows, whole=["GRANT"])
