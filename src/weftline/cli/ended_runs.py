"""`weftline export`, `import`, `compare` and `fork`: runs that have ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weftline.cli.output import DB, JSON
from weftline.cli.run_lookup import stored_id
from weftline.cli.target import URL, WORKSPACE, chosen_url
from weftline.errors import NotFound
from weftline.replay.refusing import find_run
from weftline.runtime import ids
from weftline.runtime.clock import SystemClock
from weftline.store import open_for_reading
from weftline.store.base import LogReader, ReadStore
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import RunRow
from weftline.workspace import threads, workspaces
from weftline.workspace.context import Workspaces

if TYPE_CHECKING:
    from weftline.replay.comparing import Compared, Outcome


class EndedRuns:
    def __init__(self, store: ReadStore, workspace: str | None) -> None:
        self.log: LogReader = store.log
        self.records = store.records
        self._store = store
        self._workspaces = Workspaces(store.records, store.vault, SystemClock())
        self._workspace = workspace

    async def find_thread(self, session_id: str) -> tuple[ThreadRow, bool]:
        """Returns a thread by its id, and whether code refers to it by its name. Raises `NotFound`."""
        unknown = NotFound(f"There is no session {session_id!r}.")
        parsed = ids.parse(session_id, prefix="ses_")
        if parsed is None:
            raise unknown
        key, salt = parsed
        workspace = await self._key()
        try:
            row = await threads.by_key(self._workspaces, key)
        except NotFound:
            raise unknown from None
        if row.salt != salt or workspace not in (None, row.workspace):
            raise unknown
        return row, await threads.is_named(self._workspaces, row)

    async def find(self, run_id: str) -> RunRow:
        """Returns a run by the beginning of its id.

        Raises `NotFound` for a run of another workspace than the named one.
        """
        workspace = await self._key()
        return await find_run(self.log, await stored_id(self._store, run_id, workspace=workspace), workspace=workspace)

    async def _key(self) -> int | None:
        return None if self._workspace is None else await workspaces.find(self._workspaces, self._workspace)


@asynccontextmanager
async def ended_runs(db: Path, workspace: str | None) -> AsyncGenerator[EndedRuns]:
    store = open_for_reading(db)
    try:
        yield EndedRuns(store, workspace)
    finally:
        await store.close()


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Write to this file.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@WORKSPACE
@DB
@JSON
def export(run_id: str, output: Path | None, force: bool, workspace: str | None, db: Path, as_json: bool) -> None:
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
    found = asyncio.run(_exported(run_id, output, workspace, db, force=force))
    if output is not None:
        click.echo(json.dumps({"run": found, "path": str(output)}) if as_json else output)


async def _exported(run_id: str, output: Path | None, workspace: str | None, db: Path, *, force: bool) -> str:
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


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--workspace", default="default", show_default=True, metavar="NAME", help="Where the runs will be.")
@DB
@JSON
def import_(file: Path, workspace: str, db: Path, as_json: bool) -> None:
    """Add the runs of an exported FILE to the store, and print the ids of those that are new.

    They keep their ids and can only be read, replayed and forked. A session becomes a new one, which can be continued;
    its id is printed last. A server may have the store open. Importing a file again changes nothing.
    """
    from weftline.cli.reach import reach

    with reach(db, writes=True) as at:
        imported = at.operate("POST", "imports", body={"path": str(file.absolute()), "workspace": workspace})
    if as_json:
        click.echo(json.dumps(imported))
        return
    for run_id in imported["created"]:
        click.echo(run_id)
    if imported.get("thread"):
        click.echo(imported["thread"])
    if imported["present"]:
        click.echo(f"Already here: {', '.join(imported['present'])}.", err=True)


@click.command()
@click.argument("first")
@click.argument("second")
@WORKSPACE
@DB
@JSON
def compare(first: str, second: str, workspace: str | None, db: Path, as_json: bool) -> None:
    """Show two runs that have ended side by side, such as a run and its fork.

    What a fork inherited is shown separately: it was not paid for again. The store may be in use by a server.
    """
    from msgspec.json import encode

    from weftline.cli.terminal import show_table

    compared = asyncio.run(_compared(first, second, workspace, db))
    if as_json:
        click.echo(encode(compared))
        return
    columns = [compared.first, compared.second, *([compared.inherited] if compared.inherited is not None else [])]
    names = ["", "FIRST", "SECOND", *(["INHERITED"] if compared.inherited is not None else [])]
    cells = [_cells(one) for one in columns]
    show_table(names, [(name, *[one[name] for one in cells]) for name in cells[0]], whole=[])
    differs = compared.first_difference
    click.echo("Their answers are the same throughout." if differs is None else f"They differ from turn {differs} on.")


def _cells(one: Outcome) -> dict[str, str]:
    return {
        "run": one.run,
        "status": f"{one.status} {one.code}".strip(),
        "turns": str(one.turns),
        "calls": str(one.calls),
        "tokens in": str(one.input_tokens),
        "tokens out": str(one.output_tokens),
        "cost": "" if one.cost_usd is None else f"${one.cost_usd:.6f}",
        "active": f"{one.active_s:.1f} s",
        "text": one.text,
    }


async def _compared(first: str, second: str, workspace: str | None, db: Path) -> Compared:
    from weftline.replay.comparing import compare_runs

    async with ended_runs(db, workspace) as runs:
        return await compare_runs(runs.log, await runs.find(first), await runs.find(second))


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--turn", type=click.IntRange(0), required=True, metavar="N", help="The first turn to run again, counted from 0."
)
@click.option("--model", metavar="ID", help="Another model.")
@click.option("--system", metavar="TEXT", help="Another system prompt.")
@click.option("--reasoning", metavar="LEVEL", help="Another reasoning level: a name, or 0 to 100.")
@click.option("--message", metavar="TEXT", help="What the model reads before that turn.")
@URL
@WORKSPACE
@DB
@JSON
def fork(
    run_id: str,
    turn: int,
    model: str | None,
    system: str | None,
    reasoning: str | None,
    message: str | None,
    url: str | None,
    workspace: str | None,
    db: Path,
    as_json: bool,
) -> None:
    """Continue from a turn of a RUN that has ended, as a new run, and print its id.

    Nothing before that turn is repeated. Without --url this asks the server that has the store open. `weftline compare`
    shows both side by side.
    """
    level = int(reasoning) if reasoning is not None and reasoning.isdigit() else reasoning
    asked = {"turn": turn, "modelId": model, "systemPrompt": system, "reasoningLevel": level, "message": message}
    changes = {name: value for name, value in asked.items() if value is not None}
    from weftline.cli.reach import reach
    from weftline.cli.run_lookup import path_of, whole_id

    with reach(db, url=chosen_url(url), workspace=workspace, writes=True) as at:
        forked = at.post_once(f"{path_of(whole_id(at, run_id))}/fork", changes)["runId"]
    click.echo(json.dumps({"run": forked, "turn": turn}) if as_json else forked)
