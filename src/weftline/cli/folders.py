"""`weftline init`, `check` and `info`: folders of agents."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from weftline.cli.output import JSON
from weftline.errors import Conflict, InvalidRequest

FOLDER = click.Path(path_type=str)


@click.command()
@click.argument("folder", type=FOLDER)
@JSON
def check(folder: str, as_json: bool) -> None:
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


@click.command()
@click.argument("folder", type=FOLDER)
@JSON
def info(folder: str, as_json: bool) -> None:
    """Show what a folder of agents has: each definition with its file, and what each agent can reach.

    What is wrong with it, `weftline check` says.
    """
    from msgspec import to_builtins

    from weftline.cli.terminal import show_table
    from weftline.threads.overview import overview
    from weftline.threads.project import read_project

    found = overview(read_project(folder, only_checking=True))
    if as_json:
        click.echo(json.dumps(to_builtins(found), indent=2))
        return
    show_table(("KIND", "NAME", "FILE"), [(one.kind, one.name, f"{one.file}:{one.line}") for one in found.found])
    for agent in found.agents:
        click.echo(f"\nagent {agent.name}")
        for what, names in agent.reaches.items():
            click.echo(f"  {what:<8} {', '.join(names)}")


@click.command()
@click.argument("agent", metavar="FOLDER:AGENT")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A new folder for the package.")
@click.option("--id", "package_id", metavar="ID", help="The id of the package. [default: the name of the folder]")
@click.option("--version", default="0.1.0", show_default=True, help="The version of the package.")
@click.option("--requires", multiple=True, metavar="NAME", help="Not packed: the folder that uses the package has it.")
@click.option("--endpoints", is_flag=True, help="Pack all endpoints of the folder too.")
@JSON
def pack(
    agent: str,
    out: Path,
    package_id: str | None,
    version: str,
    requires: tuple[str, ...],
    endpoints: bool,
    as_json: bool,
) -> None:
    """Write an agent, and all that it reaches, as a package for other folders, which pip installs.

    That is its prompts, tools, hooks, models and effects, the agents that these name, and the Python that they import.
    It is refused, with all reasons, if something of this cannot be found, or uses state.host.
    """
    from msgspec import to_builtins

    from weftline.threads.packing import pack
    from weftline.threads.project import read_project

    folder, _, name = agent.rpartition(":")
    if not folder:
        raise InvalidRequest(f"Name the folder and the agent: {agent}:AGENT.")
    project = read_project(folder, only_checking=True)
    made = pack(
        project,
        name,
        out,
        package_id=package_id or project.name,
        version=version,
        requires=requires,
        endpoints=endpoints,
    )
    if as_json:
        click.echo(json.dumps(to_builtins(made), indent=2))
        return
    for kind, names in made.definitions.items():
        click.echo(f"{kind:<9} {', '.join(names)}")
    click.echo(f"Next: pip install {out}", err=True)


AGENT = """\
---
description: Answers questions about orders.
model: offline
tools: find_order
---

You answer customers of Tea & Co. Look an order up before you speak of it, and be brief.
"""
TOOL = '''\
from weftline.threads import ThreadState, define_tool

from ...shared import orders


@define_tool(effect="read")
async def find_order(state: ThreadState, number: str) -> str:
    """Finds an order.

    Args:
        number: The number of the order, such as A-1001.
    """
    return orders.ORDERS.get(number, f"There is no order {number}.")
'''
MODEL = """\
from weftline.threads import define_model

# Plays the script "offline" in scripts.json, with no network and no key. For a model that thinks, say which:
# provider="anthropic", model="claude-opus-4-8", with ANTHROPIC_API_KEY in the environment.
model = define_model(name="offline", provider="test", model="offline")
"""
ORDERS = """\
# Plain Python for the files in agents/, which import it as `from ...shared import orders`.
ORDERS = {"A-1001": "Two tins of Assam, sent on Monday."}
"""
SCRIPTS = """\
{
  "offline": {
    "turns": [
      {"text": "Let me look. ", "tool_calls": [{"name": "find_order", "args": {"number": "A-1001"}}]},
      {"text": "I found it: {{tool_results.0}}"}
    ]
  }
}
"""
FILES = {
    "agents/helper.md": AGENT,
    "agents/models/offline.py": MODEL,
    "agents/tools/find_order.py": TOOL,
    "shared/orders.py": ORDERS,
    "scripts.json": SCRIPTS,
}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@JSON
def init(folder: Path, as_json: bool) -> None:
    """Write a small folder of agents to begin with: an agent, a tool, and a model that needs no network and no key.

    A folder that has anything in it is left alone.
    """
    files = [str(one) for one in _write(folder)]
    if as_json:
        click.echo(json.dumps(files, indent=2))
        return
    for one in files:
        click.echo(one)
    click.echo(f"Next: weftline check {folder}, weftline info {folder}", err=True)


def _write(folder: Path) -> list[Path]:
    """Writes a small folder of agents, and returns its files.

    Raises:
        Conflict: if there is anything in the folder already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Conflict(f"{folder} is not empty: name a new folder.")
    written: list[Path] = []
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        written.append(file)
    return written
