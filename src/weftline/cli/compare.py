"""`weftline compare`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weftline.cli.output import DB, JSON
from weftline.cli.target import WORKSPACE

if TYPE_CHECKING:
    from weftline.replay.comparing import Compared, Outcome


@click.command()
@click.argument("first")
@click.argument("second")
@WORKSPACE
@DB
@JSON
def command(first: str, second: str, workspace: str | None, db: Path, as_json: bool) -> None:
    """Show two runs that have ended side by side, such as a run and its fork.

    What a fork inherited is shown separately: it was not paid for again. The store may be in use by a server.
    """
    from msgspec.json import encode

    from weftline.cli.terminal import show_table

    compared = asyncio.run(_compare(first, second, workspace, db))
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


async def _compare(first: str, second: str, workspace: str | None, db: Path) -> Compared:
    from weftline.cli.ended_runs import ended_runs
    from weftline.replay.comparing import compare_runs

    async with ended_runs(db, workspace) as runs:
        return await compare_runs(runs.log, await runs.find(first), await runs.find(second))
