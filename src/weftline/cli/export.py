"""`weftline export`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON
from weftline.cli.target import WORKSPACE


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Write to this file.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@WORKSPACE
@DB
@JSON
def command(run_id: str, output: Path | None, force: bool, workspace: str | None, db: Path, as_json: bool) -> None:
    """Write a run that has ended, and those of its subagents, as JSON lines to a file or to standard output.

    RUN is the id of a run, or the beginning of one, or the id of a session: then its messages and all of its runs are
    written, which must have ended. The store may be in use by a server.
    """
    if output == Path("-"):
        output = None
    if as_json and output is None:
        raise click.UsageError("--json says what was written to a file: name one with --output.")
    if output is not None and not output.absolute().parent.is_dir():
        raise click.UsageError(f"{output} cannot be written: there is no folder {output.parent}.")
    found = asyncio.run(_export(run_id, output, workspace, db, force=force))
    if output is not None:
        click.echo(json.dumps({"run": found, "path": str(output)}) if as_json else output)


async def _export(run_id: str, output: Path | None, workspace: str | None, db: Path, *, force: bool) -> str:
    from weftline.cli.ended_runs import ended_runs
    from weftline.replay.exporting import export_lines, export_thread_lines, write_file
    from weftline.runtime import ids

    async with ended_runs(db, workspace) as runs:
        if run_id.startswith("ses_"):
            thread, by_name = await runs.find_thread(run_id)
            found, lines = run_id, export_thread_lines(runs.log, runs.records, thread, by_name=by_name)
        else:
            row = await runs.find(run_id)
            found, lines = ids.run_id(row.key, row.salt), export_lines(runs.log, row)
        if output is not None:
            await write_file(lines, output, force=force)
        else:
            async for line in lines:
                click.echo(line, nl=False)
        return found
