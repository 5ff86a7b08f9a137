"""`weftline grants`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weftline.cli.output import DB, Form, list_forms, show_list
from weftline.cli.target import URL, WORKSPACE, chosen_url


@click.command()
@click.argument("run_id", metavar="RUN")
@URL
@WORKSPACE
@DB
@list_forms
def command(run_id: str, url: str | None, workspace: str | None, db: Path, form: Form) -> None:
    """List what people allowed a run to do.

    With --json each has the exact arguments that were approved, whether they were edited, by whom and when, when it
    expires, and which calls used it. The beginning of the run's id is enough.
    """
    from weftline.cli.reach import reach
    from weftline.cli.run_lookup import path_of, whole_id

    with reach(db, url=chosen_url(url), workspace=workspace) as at:
        found = at.get(f"{path_of(whole_id(at, run_id))}/grants")["grants"]
    named = [{"ref": f"{one['runId']}/{one['awaitId']}", **one} for one in found]
    show_list(named, form, id_field="ref", columns=_columns, headings=_HEADINGS)


_HEADINGS = ("GRANT", "TOOL", "BY", "EDITED", "DIGEST", "USED BY", "SINCE")


def _columns(one: dict[str, Any]) -> dict[str, str]:
    from weftline.cli.terminal import ago

    return {
        "GRANT": one["ref"],
        "TOOL": one["name"],
        "BY": one["byName"] or one["by"],
        "EDITED": "yes" if one["edited"] else "no",
        "DIGEST": one["digest"][:8],
        "USED BY": ", ".join(use["toolUseId"] for use in one["used"]) or "not used",
        "SINCE": ago(one["at"]),
    }
