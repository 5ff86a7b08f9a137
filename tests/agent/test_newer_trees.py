# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""Trees of runs, some of which newer code has written: what belongs to those is left alone with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest

from weftline import Agent, Engine, Limits, ask_user, tool
from weftline.agent.results import RunResult
from weftline.errors import Conflict
from weftline.kernel.entries import FORMAT
from weftline.runtime import ids
from weftline.runtime.supported import left_alone
from weftline.store.base import RunRow
from weftline.testing import ScriptedModel, calls

PATIENCE_S = 60
TOP, MID, LEAF = "run 1", "run 2", "run 3"
NEWER = {"format": f"UPDATE runs SET format = {FORMAT + 1}", "rules": "UPDATE runs SET rules = 99"}
KNOWN = {"format": f"UPDATE runs SET format = {FORMAT}", "rules": "UPDATE runs SET rules = 1"}


@tool(effect="read")
async def look() -> str:
    """Looks."""
    return "seen"


def team() -> Agent:
    """Three levels; the lowest looks and asks a person, so that all of them wait."""
    turns = [calls(("look", {}), ("ask_user", {"question": "Which colour?"})), "{{tool_results.1}}"]
    leaf = Agent(ScriptedModel(turns), name="leaf", tools=[look, ask_user])
    mid = Agent(ScriptedModel([calls("leaf", task="Ask."), "{{tool_results.0}}"]), name="mid", tools=[leaf.as_tool("A.")])
    top = ScriptedModel([calls("mid", task="Ask."), "{{tool_results.0}}"])
    return Agent(top, name="top", tools=[mid.as_tool("B.")], limits=Limits())


def change(folder: Path, statement: str, *, key: int | None = None) -> None:
    db = apsw.Connection(str(folder / "weftline.db"))
    db.execute(statement if key is None else f"{statement} WHERE key = {key}")
    db.close()


async def waiting(folder: Path) -> list[str]:
    """Three runs of an engine that has stopped: the topmost, the one below it, and the lowest, which asks a person."""
    agent = team()
    async with Engine(folder, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        async with asyncio.timeout(PATIENCE_S):
            while not await engine.awaits():
                await asyncio.sleep(0.01)
        host = await engine.runtime()
        found = [await rows(host, key) for key in (1, 2, 3)]
    assert ids.run_id(1, found[0].salt) == run.id
    change(folder, "UPDATE runs SET due_at = 0, fold = 99")  # so that a start considers them, and folds them anew
    return [ids.run_id(row.key, row.salt) for row in found]


async def rows(host: object, key: int) -> RunRow:
    row = await host.stored.row(key)  # type: ignore[attr-defined]
    assert isinstance(row, RunRow)
    return row
