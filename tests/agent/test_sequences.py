"""The entries of reference runs: in the order that docs/events.md says, on every store, live and from the log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from agent.kit import key_of, workspace_of
from weftline import Agent, Engine, Limits, tool
from weftline.agent.run import Run
from weftline.events import AnyEvent, AwaitOpened, CallOpened
from weftline.messages import User
from weftline.plan import LocalRef, RunPlan
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import ToolOutput

PATIENCE_S = 60
_ROW = re.compile(r"^\| (?P<name>[a-z ]+) \| (?P<kinds>`[a-z_.]+`(?:, `[a-z_.]+`)*) \|$", re.MULTILINE)


def documented(root: Path) -> dict[str, list[str]]:
    section = (root / "docs" / "events.md").read_text(encoding="utf-8").partition("## In which order")[2]
    return {row["name"]: re.findall(r"`([a-z_.]+)`", row["kinds"]) for row in _ROW.finditer(section)}


@tool(effect="read")
def look() -> str:
    """Looks."""
    return "Seen."


@tool(effect="once", confirm="Pay?")
def pay() -> str:
    """Pays."""
    return "Paid."


clerk = Agent("lab:clerk", name="clerk")
AGENTS = {
    "plain answer": Agent("lab:plain", name="plain"),
    "one tool turn": Agent("lab:tool", name="tool", tools=[look]),
    "confirmed call": Agent("lab:confirmed", name="confirmed", tools=[pay]),
    "forced final turn": Agent("lab:tool", name="final", tools=[look], limits=Limits(max_turns=1)),
    "agent as tool": Agent("lab:parent", name="parent", tools=[clerk.as_tool("Knows.", name="ask_clerk")]),
}
TURNS = {
    "plain": ["Hello."],
    "tool": [calls("look"), "Done."],
    "confirmed": [calls("pay"), "Done."],
    "external": [calls("look"), "Done."],
    "parent": [calls("ask_clerk", task="Who?"), "Done."],
    "clerk": ["Ann."],
}


async def answer_questions(engine: Engine, run: Run[Any], events: AsyncIterator[AnyEvent]) -> list[AnyEvent]:
    """The events of a run, as they come; whoever is asked answers at once."""
    found: list[AnyEvent] = []
    async for event in events:
        found.append(event)
        if isinstance(event, AwaitOpened):
            await run.approve(event.id)
        if isinstance(event, CallOpened) and event.client:
            host = await engine.runtime()
            await host.answer(await key_of(engine, run.id), event.call_id, ToolOutput.of("Seen."))
    return found


@pytest.mark.requirement("run.event.sequences")
@pytest.mark.parametrize("name", [*AGENTS, "external tools"])
@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_entries_of_reference_run_come_in_documented_order(
    name: str, where: str, tmp_path: Path, project_root: Path
) -> None:
    models = Catalog()
    for model, turns in TURNS.items():
        models.add(ScriptedModel(turns), name=f"lab-{model}")
    by_model: Callable[[str], str] = lambda model: f"lab-{model.partition(':')[2]}:script"  # noqa: E731
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path if where == "sqlite" else None, models=models) as engine:
        if name == "external tools":
            plan = RunPlan(messages=(User.of("Go."),), model=by_model("lab:external"), tools=(LocalRef("look"),))
            run = engine.attach(await (await engine.runtime()).create(await workspace_of(engine), plan))
        else:
            agent = AGENTS[name]
            clerk.model = by_model("lab:clerk")
            run = await engine.start(agent, "Go.", model=by_model(str(agent.model)))
        live = await answer_questions(engine, run, run.events())
        again = [event async for event in run.events()]
        page = await run.entries(limit=1000)
    assert again == live, "a replay has the order and the numbers that live readers saw"
    kinds = [kind for kind, _ in groupby([entry.kind for entry in page.entries])]
    assert kinds == documented(project_root)[name]
    assert [entry.seq for entry in page.entries] == list(range(1, len(page.entries) + 1))
