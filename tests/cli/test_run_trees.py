"""`weftline runs list --children`: the runs of subagents below those that called them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import weftline
from weftline import Agent, Engine
from weftline.testing import ScriptedModel, calls


@pytest.fixture
async def tree(tmp_path: Path) -> dict[str, str]:
    """The ids of two runs of a session by name, the second with two children, the first of which has one."""
    leaf = Agent(ScriptedModel(["leaf"]), name="leaf")
    middle = Agent(ScriptedModel([calls("leaf", task="x"), "m"]), name="middle", tools=[leaf.as_tool("L.")])
    tools = [middle.as_tool("M."), leaf.as_tool("L.")]
    asks = calls(("middle", {"task": "x"}), ("leaf", {"task": "y"}))
    top = Agent(ScriptedModel([asks, "done"]), name="top", tools=tools)
    async with Engine(tmp_path / "db", agents=[top, leaf, middle]) as engine:
        first = await engine.start(leaf, "Hi.", thread="t")
        await first.result()
        run = await engine.start(top, "Go.", thread="t")
        await run.result()
        session = (await run.snapshot()).thread
    assert session is not None
    return {"first": first.id, "top": run.id, "session": session, "db": str(tmp_path / "db")}


def test_children_are_shown_below_their_parents(tree: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    place = ("runs", "list", "--session", tree["session"], "--db", tree["db"])
    assert weftline(*place, "-q").out.split() == [tree["top"], tree["first"]]
    listed = json.loads(weftline(*place, "--children", "--json").out)
    parents = {run["id"]: run["parentRunId"] for run in listed}
    named = {run["id"]: run["name"] for run in listed}
    [middle] = [id for id, name in named.items() if name == "middle"]
    assert len(parents) == 5 and parents[tree["top"]] is parents[tree["first"]] is None
    assert sorted([named[id] for id, parent in parents.items() if parent == tree["top"]]) == ["leaf", "middle"]
    assert [named[id] for id, parent in parents.items() if parent == middle] == ["leaf"]
    shown = weftline("runs", "show", middle, "--db", tree["db"]).out
    assert f"parent    {tree['top']}" in shown

    def yes(stream: object = None) -> bool:
        return True

    monkeypatch.setattr("weftline.cli.terminal.is_terminal", yes)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    table = [line.split()[:2] for line in weftline(*place, "--children").out.splitlines()[1:]]
    marks = [first if first.startswith("└") else "" for first, _ in table]
    ids = [second if first.startswith("└") else first for first, second in table]
    assert ids[0] == tree["top"] and ids[-1] == tree["first"] and set(ids) == set(parents)
    assert [marks[place] for place in (0, -1)] == ["", ""]
    assert sorted(marks[1:-1]) == ["└─", "└─", "└───"]
    assert ids[ids.index(middle) + 1] in [id for id, parent in parents.items() if parent == middle]
