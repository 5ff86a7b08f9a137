"""`weftline check`."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from weftline.cli.output import JSON

FOLDER = click.Path(path_type=str)


@click.command()
@click.argument("folder", type=FOLDER)
@JSON
def command(folder: str, as_json: bool) -> None:
    """Check a folder of agents: every problem with its file and line, and the nearest known name.

    Its files are imported, with WEFTLINE_CHECK=1 in their environment, but nothing of them is run.

    Exits with 1 if there is a problem; warnings do not count.
    """
    from weftline.threads.checking import check
    from weftline.threads.project import ProjectError, read_project

    try:
        report = check(read_project(folder, only_checking=True))
    except ProjectError as error:
        problems, warnings = error.problems, ()
    else:
        problems, warnings = report.problems, report.warnings
    if as_json:
        shown = {"problems": [as_item(one) for one in problems], "warnings": [as_item(one) for one in warnings]}
        click.echo(json.dumps(shown, indent=2))
    else:
        for one in problems:
            click.echo(str(one))
        for one in warnings:
            click.echo(f"{one} (warning)")
        click.echo(_summary(len(problems), len(warnings)), err=True)
    sys.exit(1 if problems else 0)


def as_item(problem: Any) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.line,
        "definition": problem.about,
        "field": problem.field,
        "message": problem.message,
    }


def _summary(problems: int, warnings: int) -> str:
    said = [
        f"{count} {name}{'' if count == 1 else 's'}"
        for count, name in ((problems, "problem"), (warnings, "warning"))
        if count
    ]
    return " and ".join(said) + "." if said else "Nothing is wrong."
