"""`weftline salvage`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weftline.cli.output import JSON

if TYPE_CHECKING:
    from weftline.store.rows import Salvaged


@click.command()
@click.argument("source", metavar="FROM", type=click.Path(path_type=Path))
@click.argument("to", type=click.Path(path_type=Path))
@JSON
def command(source: Path, to: Path, as_json: bool) -> None:
    """Copy what can be read of the damaged store FROM to the new directory TO, and print what is lost.

    No server may be using the store, which stays as it is. Every run of the copy is checked: one that has lost part of
    its log keeps its outcome if it had ended, and will fail if not. The copy is held, like a backup, until `weftline
    resume --all`. Exits with 1 if anything is lost.
    """
    from weftline.errors import LOG_DAMAGED, StoreError
    from weftline.runtime import ids
    from weftline.store import salvage_store

    found = salvage_store(source.absolute(), to.absolute())
    shortened, failing = ([ids.run_id(key, salt) for key, salt in runs] for runs in (found.shortened, found.failing))
    lost = bool(found.damaged or shortened or failing or found.lost or found.unreadable)
    if as_json:
        report = {
            "path": str(to.absolute()),
            "bytes": found.bytes,
            "wholeRuns": found.whole,
            "shortenedRuns": shortened,
            "failingRuns": failing,
            "lostRuns": found.lost,
            "damagedTables": found.damaged,
            "unreadable": found.unreadable,
        }
        click.echo(json.dumps(report))
    else:
        click.echo(to.absolute())
        click.echo("\n".join(_lines(found, shortened, failing)), err=True)
    if lost:
        raise StoreError("Part of the store is lost.", code=LOG_DAMAGED)


def _lines(found: Salvaged, shortened: list[str], failing: list[str]) -> Iterator[str]:
    yield f"Runs that are whole: {found.whole:,}."
    if shortened:
        yield f"Runs that had ended, of which only the outcome is left: {', '.join(shortened)}."
    if failing:
        yield f"Runs that cannot continue and will fail: {', '.join(failing)}."
    if found.lost:
        yield f"Runs that are lost although parts of their logs could be read: {found.lost:,}."
    if found.damaged:
        yield f"Rows are missing in: {', '.join(found.damaged)}."
    if found.unreadable:
        yield f"Specs, messages of sessions or attachments that cannot be read: {found.unreadable:,}."
    yield "No run continues before `weftline resume --all`."
