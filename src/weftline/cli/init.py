"""`weftline init`: a folder with an agent, a tool and a scripted model, which needs no network and no key."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import JSON
from weftline.errors import Conflict

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
def command(folder: Path, as_json: bool) -> None:
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
