"""`weftline backup`, `restore`, `resume`, `salvage`, `retention` and `vacuum`: the store as a whole."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weftline.cli.output import DB, JSON
from weftline.runtime import ids
from weftline.store.rows import Copied, Unreadable

if TYPE_CHECKING:
    from weftline.cli.reach import AtStore
    from weftline.store.rows import Salvaged


@click.command()
@click.argument("dest", type=click.Path(path_type=Path))
@DB
@JSON
def backup(dest: Path, db: Path, as_json: bool) -> None:
    """Copy the store to the new directory DEST, while a server uses it or without one, and print its path.

    The copy is a checked snapshot of the store, with the keys that its secrets need. Copying the files themselves is
    not a backup. If anything in the copy cannot be read, it is kept, the command says what, and exits with 1.
    """
    from msgspec import convert

    from weftline.cli.reach import reach
    from weftline.errors import LOG_DAMAGED, StoreError
    from weftline.store.rows import Copied

    path = dest.absolute()
    with reach(db, writes=True) as at:
        copied = convert(at.operate("POST", "store/backup", body={"to": str(path)}), Copied)
    report = {"path": str(path), "bytes": copied.bytes, "unreadable": copied.unreadable}
    click.echo(json.dumps(report) if as_json else path)
    if unreadable := unreadable_in(copied):
        raise StoreError(
            f"The copy was made, but parts of the store are damaged and cannot be read: {unreadable}.",
            code=LOG_DAMAGED,
        )


@click.command()
@click.argument("backup", type=click.Path(path_type=Path))
@DB
@JSON
def restore(backup: Path, db: Path, as_json: bool) -> None:
    """Turn a backup into a store, at a path that has none, and print that path.

    The store is held: a server on it answers reads, but does not continue runs until `weftline resume --all`.
    """
    from weftline.store import restore_store
    from weftline.store.naming import db_option

    copied = restore_store(backup.absolute(), db.absolute())
    report = {"path": str(db.absolute()), "bytes": copied.bytes, "unreadable": copied.unreadable}
    click.echo(json.dumps(report) if as_json else db.absolute())
    if unreadable := unreadable_in(copied):
        click.echo(f"Parts of the store cannot be read: {unreadable}.", err=True)
    click.echo(
        f"Restored {copied.bytes:,} bytes. No run continues before `weftline resume --all{db_option(db)}`;"
        " cancel those that must not first.",
        err=True,
    )


@click.command()
@click.option("--all", "everything", is_flag=True, required=True, help="All runs of the store.")
@DB
@JSON
def resume(everything: bool, db: Path, as_json: bool) -> None:
    """Let the runs of a restored store continue, and say how many have not ended.

    On a store that is not held this changes nothing, and says so.
    """
    from weftline.cli.reach import reach

    with reach(db, writes=True) as at:
        resumed = at.operate("POST", "store/resume")
    count = resumed["runs"]
    if as_json:
        click.echo(json.dumps(resumed))
    elif not resumed["held"]:
        click.echo(f"The store at {db} is not held: there is nothing to resume.")
    elif count:
        click.echo(f"Runs may continue: {count} {'has' if count == 1 else 'have'} not ended.")
    else:
        click.echo("Runs may continue; all have ended.")


def unreadable_in(copied: Copied) -> str:
    """Returns how much of a copy is unreadable, and which parts; empty if everything can be read."""
    if not copied.unreadable:
        return ""
    named = "; ".join([_place(one) for one in copied.examples])
    more = copied.unreadable - len(copied.examples)
    return f"{copied.unreadable} ({named}{f'; {more} more' if more else ''})"


def _place(one: Unreadable) -> str:
    return f"{one.what} of {ids.run_id(one.run, one.salt)}" if one.run else one.what


@click.command()
@click.argument("source", metavar="FROM", type=click.Path(path_type=Path))
@click.argument("to", type=click.Path(path_type=Path))
@JSON
def salvage(source: Path, to: Path, as_json: bool) -> None:
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


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@click.group()
def retention() -> None:
    """Remove old logs. Nothing is removed unless you ask for it."""


@retention.command()
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


@click.command()
@DB
@JSON
def vacuum(db: Path, as_json: bool) -> None:
    """Return unused space to the disk, and say how much.

    It works in small steps and leaves at least half the time to others. `weftline retention run` does this at its end.
    """
    from weftline.cli.reach import reach

    with reach(db, writes=True) as at:
        freed = shrink(at)
    click.echo(json.dumps({"bytes": freed}) if as_json else f"{freed:,} bytes were returned to the disk.")


def shrink(at: AtStore) -> int:
    """Runs all steps; returns how many bytes they freed."""
    freed = 0
    while count := at.operate("POST", "store/shrink")["bytes"]:
        freed += count
    return freed
