"""`weftline replay`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weftline.cli.output import CODE, DB, JSON, TOOLS
from weftline.cli.target import WORKSPACE

if TYPE_CHECKING:
    from weftline.replay.replaying import Replayed

DIVERGED, REFUSED = 1, 2


@click.command()
@click.argument("run")
@click.option("--agents", type=CODE, metavar="CODE", help="The file, folder or module with the run's agent.")
@TOOLS
@click.option("--pytest", "test", type=click.Path(path_type=Path), metavar="PATH", help="Write a test to this file.")
@click.option("--force", is_flag=True, help="Overwrite the test.")
@WORKSPACE
@DB
@JSON
def command(
    run: str,
    agents: str | None,
    tools: str | None,
    test: Path | None,
    force: bool,
    workspace: str | None,
    db: Path,
    as_json: bool,
) -> None:
    """Run a RUN that has ended again, with the answers of models, tools and people from its log.

    RUN is an id, or an exported file. No network, key or tool is used, and nothing is written to the store. The exit
    code is 0 if nothing differs, 1 at the first difference, and 2 for a run that cannot be replayed.
    """
    from msgspec.json import encode

    from weftline.errors import WeftlineError

    try:
        done = asyncio.run(_replay(run, agents, tools, test, workspace, db, force=force))
    except WeftlineError as error:
        click.echo(f"weftline: {error.message}", err=True)
        sys.exit(REFUSED)
    if done.code_missing and agents is not None:
        click.echo(f"weftline: {agents} does not have the agent of {done.run}.", err=True)
        sys.exit(REFUSED)
    click.echo(encode(done) if as_json else str(done))
    if done.tools_missing:
        names = ", ".join(done.tools_missing)
        click.echo(f"Tools that are not here, taken as recorded: {names}. --tools CODE compares them, too.", err=True)
    if done.code_missing:
        click.echo("Its agent's code is not here: --agents CODE compares the prompt and the tools, too.", err=True)
    if done.divergence is not None:
        sys.exit(DIVERGED)
    if test is not None:
        click.echo(f"Written: {test} and {test.with_suffix('.jsonl')}", err=True)


async def _replay(
    run: str,
    agents: str | None,
    tools: str | None,
    test: Path | None,
    workspace: str | None,
    db: Path,
    *,
    force: bool,
) -> Replayed:
    from weftline.agent.engine.replaying import offers, today
    from weftline.agent.loader import load_agents
    from weftline.cli.ended_runs import ended_runs
    from weftline.replay.exporting import export_lines
    from weftline.replay.pytests import write_test
    from weftline.replay.reading import read_export
    from weftline.replay.recorded import recorded_in_file, recorded_in_store
    from weftline.replay.replaying import replay_runs
    from weftline.tools.loader import load_tools

    code = None if agents is None else load_agents(agents)
    found = None if code is None else code.agents.values()
    named = {**({} if code is None else code.tools), **({} if tools is None else load_tools(tools))}
    now = today(found, tools=named)
    in_test = today(found)  # which only has the agents
    file = Path(run)
    if await asyncio.to_thread(file.is_file):
        runs = recorded_in_file(await asyncio.to_thread(read_export, file))
        done = await replay_runs(runs, now)
        if test is not None and _is_whole(done, agents):
            offered = await offers(runs, in_test)
            await write_test(test, _lines(file), run_id=done.run, offered=offered, agents=agents, force=force)
        return done
    async with ended_runs(db, workspace) as stored:
        row = await stored.find(run)
        runs = await recorded_in_store(stored.log, row)
        done = await replay_runs(runs, now)
        if test is not None and _is_whole(done, agents):
            offered = await offers(runs, in_test)
            lines = export_lines(stored.log, row)
            await write_test(test, lines, run_id=done.run, offered=offered, agents=agents, force=force)
        return done


def _is_whole(done: Replayed, agents: str | None) -> bool:
    return done.divergence is None and not (done.code_missing and agents is not None)


async def _lines(file: Path) -> AsyncGenerator[bytes]:
    with file.open("rb") as opened:
        for line in opened:
            yield line
