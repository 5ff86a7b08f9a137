"""Replays: the same comes out of every kind of run, and the first difference is found and told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from weftline import Agent, Engine, Limits, RunContext, ToolContext, ask_user, hook, tool
from weftline.agent.engine.replaying import AgentsToday, replay_stored
from weftline.agent.run import Run
from weftline.behaviors import Behavior
from weftline.errors import WeftlineError
from weftline.events import AwaitOpened
from weftline.hooks import ToolGate
from weftline.kernel.entries import FORMAT
from weftline.policies import Policy
from weftline.replay.importing import import_runs
from weftline.replay.reading import read_export
from weftline.replay.recorded import FileRun
from weftline.replay.replaying import Replayed, replay_run
from weftline.runtime import ids
from weftline.server.offline import StoredEngine
from weftline.store.memory import MemoryDisk, MemoryStore
from weftline.testing import ScriptedModel, calls

made: list[str] = []
"""What the tools here have done."""


@tool(effect="read")
def look(place: str, depth: int = 1) -> str:
    """Looks."""
    made.append(place)
    if place == "well":
        raise ValueError("it is dark")
    return f"{place}: nothing at {depth}"


@tool(effect="once", confirm="Pay {amount}?")
def pay(amount: int, context: ToolContext) -> str:
    """Pays."""
    made.append(str(amount))
    context.state["paid"] = amount
    return f"paid {amount}"


@hook(ToolGate)
def not_the_shed(gate: ToolGate) -> None:
    if gate.args.get("place") == "shed":
        gate.block("Not there.")


def searcher(*turns: Any, **options: Any) -> Agent[Any, Any]:
    options.setdefault("tools", [look])
    return Agent(ScriptedModel([*turns, "Done."]), name="searcher", **options)


def introduced(context: RunContext[object]) -> str:
    return f"You are {context.run.id}."


def parent() -> Agent[Any, Any]:
    helper = Agent(ScriptedModel([calls("look", place="x"), "No."]), name="helper", instructions="Help.", tools=[look])
    return searcher(calls("ask_helper", task="Look."), tools=[helper.as_tool("Helps.", name="ask_helper")])


MANY = [calls("look", place=f"{n}" * 50) for n in range(6)]
RUNS: dict[str, tuple[Agent[Any, Any], str, int, int]] = {
    "plain": (searcher(instructions="Be brief."), "succeeded", 1, 0),
    "calls": (
        searcher(calls(("look", {"place": "shed"}), ("look", {"place": "well"})), calls("look", place="x", depth="2")),
        "succeeded",
        3,
        3,
    ),
    "unknown and invalid": (searcher(calls(("nope", {}), ("look", {}))), "succeeded", 2, 2),
    "failed": (searcher({"error": {"class": "auth", "message": "no", "retryable": False}}), "failed", 0, 0),
    "final turn": (
        searcher(*[calls("look", place=str(n)) for n in range(2)], limits=Limits(max_turns=2)),
        "succeeded",
        3,
        2,
    ),
    "in a loop": (searcher(*[calls("look", place="a")] * 6), "succeeded", 7, 6),
    "typed": (searcher("no", '{"value": 7}', output=int), "succeeded", 2, 0),
    "gated": (searcher(calls("look", place="shed"), hooks=[not_the_shed]), "succeeded", 2, 1),
    "instructions by code": (searcher(instructions=introduced), "succeeded", 1, 0),
    "a subagent": (parent(), "succeeded", 4, 2),
    "restricted to a tool": (
        searcher(
            calls(("look", {"place": "x"}), ("ask_user", {"question": "Which?"})),
            tools=[look, ask_user],
            policy=Policy(restrict_to_tool="look"),
        ),
        "succeeded",
        2,
        2,
    ),
    "no tools left": (searcher(policy=Policy(allowed_tags=[])), "succeeded", 1, 0),
    "budget": (
        searcher(*MANY, behavior=Behavior(tool_budgets={"look": 2}), limits=Limits(loop_soft=0)),
        "succeeded",
        7,
        6,
    ),
}


async def finished(engine: Engine, agent: Agent[Any, Any], **options: Any) -> str:
    run = await engine.start(agent, "Where?", **options)
    async for _ in run.events():
        pass
    return run.id


async def replayed(engine: Engine, agent: Agent[Any, Any], run_id: str) -> Replayed:
    """A replay that comes out the same. It calls no tool."""
    made.clear()
    done = await engine.replay(run_id, agents=[agent])
    assert done.divergence is None, str(done)
    assert not done.code_missing and made == []
    return done


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.requirement("run.replay.offline")
async def test_a_run_comes_out_as_it_did(name: str) -> None:
    agent, status, turns, closed = RUNS[name]
    async with Engine() as engine:
        run_id = await finished(engine, agent)
        done = await replayed(engine, agent, run_id)
        assert (done.status, done.turns, done.calls) == (status, turns, closed)
        without = await engine.replay(run_id)
        assert without.code_missing and without.divergence is None
        assert f"turns {turns}, calls {closed}" in str(done)


async def cancelled(engine: Engine, run: Run[Any]) -> None:
    await run.cancel()


async def answered(engine: Engine, run: Run[Any]) -> None:
    paid, asked = await engine.awaits(run_id=run.id)
    await run.answer(asked.id, "blue")
    await run.approve(paid.id, args={"amount": 4})


async def denied(engine: Engine, run: Run[Any]) -> None:
    paid, _ = await engine.awaits(run_id=run.id)
    await run.deny(paid.id, "Too much.")
    await run.steer("Hurry.")  # the question is withdrawn


@pytest.mark.parametrize("say", [cancelled, answered, denied])
@pytest.mark.requirement("run.replay.offline")
async def test_run_with_people_replays_identically(say: Callable[[Engine, Run[Any]], Any]) -> None:
    asking = calls(("pay", {"amount": 5}), ("ask_user", {"question": "Which?"}))
    agent = searcher(asking, tools=[pay, ask_user])
    async with Engine() as engine:
        run = await engine.start(agent, "Pay.")
        opened = 0
        async for event in run.events():
            opened += type(event).__name__ == "AwaitOpened"
            if opened == 2:
                opened = 0
                await say(engine, run)
        done = await replayed(engine, agent, run.id)
        assert done.calls == 2 and done.status == ("cancelled" if say is cancelled else "succeeded")


@pytest.mark.requirement("run.replay.offline")
async def test_run_that_resolved_a_doubt_replays_identically(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool(effect="once", in_doubt="ask")
    async def send(text: str) -> str:
        """Sends."""
        begun.set()
        await asyncio.Event().wait()
        return text

    agent = searcher(calls("send", text="hello"), tools=[send])
    async with Engine(tmp_path / "data", agents=[agent], drain_s=0) as engine:
        run_id = (await engine.start(agent, "Send it.")).id
        await begun.wait()
    async with Engine(tmp_path / "data", agents=[agent]) as engine:
        run = engine.attach(run_id)
        async for event in run.events():
            if isinstance(event, AwaitOpened):
                await run.answer(event.id, "sent")
        assert (await replayed(engine, agent, run_id)).calls == 1
        file = await engine.export(run_id, tmp_path / "run.jsonl")
    async with Engine() as other:
        await other.import_runs(file)
        assert (await replayed(other, agent, run_id)).calls == 1


@pytest.mark.requirement("run.replay.offline")
async def test_run_on_thread_comes_out_with_history_that_it_had() -> None:
    agent = searcher("One.", "Two.", "Three.")
    async with Engine() as engine:
        for _ in range(3):
            run_id = await finished(engine, agent, thread="customer")
            await replayed(engine, agent, run_id)


def changed(name: str) -> Agent[Any, Any]:
    """The agent of the second test below, after a change."""

    @tool(name="look", effect="read")
    def looks_deeper(place: str, depth: int = 2) -> str:
        """Looks."""
        return place

    @tool(name="look", effect="once")
    def looks_once(place: str, depth: int = 1) -> str:
        """Looks."""
        return place

    @tool(name="look", effect="read", concurrent=True)
    def wants_a_number(place: int, depth: int = 1) -> str:
        """Looks."""
        return str(place)

    @tool(name="look", effect="read", concurrent=True)
    def peers(place: str, depth: int = 1) -> str:
        """Peers."""
        return place

    @tool(name="look", effect="read", concurrent=True)
    def shouts(place: Annotated[str, AfterValidator(str.upper)], depth: int = 1) -> str:
        """Looks."""
        return place

    options: dict[str, dict[str, Any]] = {
        "description": {"tools": [peers]},
        "arguments": {"tools": [shouts]},
        "prompt": {"instructions": "Be long."},
        "default": {"tools": [looks_deeper]},
        "effect": {"tools": [looks_once]},
        "schema": {"tools": [wants_a_number]},
        "no tool": {"tools": []},
        "nothing": {},
    }
    given = {"instructions": "Be brief.", **options[name]}
    return searcher(calls("look", place="shed"), **given)


@pytest.mark.parametrize(
    ("name", "turn", "field"),
    [
        ("prompt", 0, "system"),
        ("default", 0, "offered"),
        ("description", 0, "offered"),
        ("arguments", 0, "calls.0.args.place"),
        ("effect", 0, "calls.0.effect"),
        ("schema", 0, "offered"),
        ("no tool", 0, "estimate"),
        ("nothing", None, ""),
    ],
)
@pytest.mark.requirement("run.replay.divergence")
async def test_first_difference_is_told_and_what_makes_none_is_not(name: str, turn: int | None, field: str) -> None:
    agent = searcher(calls("look", place="shed"), instructions="Be brief.")
    async with Engine() as engine:
        run_id = await finished(engine, agent)
        done = await engine.replay(run_id, agents=[changed(name)])
        found = done.divergence
        if turn is None:
            assert found is None
            return
        assert found is not None and found.turn == turn and found.seq > 1
        assert field in [one.field for one in found.differences], str(found)
        assert f"turn {turn}, at entry {found.seq}" in str(found) and "the log has" in str(found)


@pytest.mark.requirement("run.replay.divergence")
async def test_reading_tools_ran_one_after_the_other_in_older_runs() -> None:
    @tool(name="look", effect="read", concurrent=False)
    def one_by_one(place: str, depth: int = 1) -> str:
        """Looks."""
        return look(place, depth)

    asked = {"place": "barn"}, {"place": "shed"}
    async with Engine() as engine:
        run_id = await finished(engine, searcher(calls(*[("look", args) for args in asked]), tools=[one_by_one]))
        replayed = await engine.replay(run_id, agents=[searcher(calls(*[("look", args) for args in asked]))])
    assert replayed.divergence is None


@pytest.mark.requirement("run.replay.divergence")
async def test_guard_that_decides_otherwise_is_told_its_entries(tmp_path: Path) -> None:
    agent = searcher(*[calls("look", place="a")] * 4)
    async with Engine() as engine:
        file = await engine.export(await finished(engine, agent), tmp_path / "run.jsonl")
    [run] = read_export(file).runs
    # The log of a version without this guard.
    [nudge] = [item for item in run.items if item.kind == "loop.detected"]
    run.items.remove(nudge)
    found = (await replay_run(FileRun(run), AgentsToday([agent]))).divergence
    assert found is not None and (found.turn, found.seq, found.now) == (2, nudge.seq + 1, "loop.detected")
    assert f"the log has {found.kind}, now it is loop.detected" in str(found)


@pytest.mark.requirement("run.replay.refused")
async def test_run_that_cannot_be_replayed_is_refused_with_reason(tmp_path: Path) -> None:
    agent, disk = searcher(), MemoryDisk()
    store = MemoryStore(disk)
    log = store.log
    async with Engine() as engine:
        under_way = await engine.start(Agent(ScriptedModel([{"deltas": ["a", "b"], "delay_ms": 600_000}])), "x")
        with pytest.raises(WeftlineError) as refused:
            await engine.replay(under_way.id)
        assert refused.value.code == "run_unfinished" and under_way.id in refused.value.message
        await under_way.cancel()
        ended = [await finished(engine, agent) for _ in range(3)]
        for run_id in ended:
            file = await engine.export(run_id, tmp_path / run_id)
            await import_runs(log, StoredEngine(store), read_export(file), workspace=1)
    trimmed, newer, elsewhere = ended
    disk.runs[ids.key_of(trimmed)].trim()
    disk.runs[ids.key_of(newer)].row.format = FORMAT + 1
    disk.runs[ids.key_of(elsewhere)].row.workspace = 2
    for run_id, code in ((trimmed, "run_trimmed"), (newer, "unsupported_run"), (elsewhere, "unknown_run")):
        with pytest.raises(WeftlineError) as refused:
            await replay_stored(log, run_id, workspace=1, agents=[agent])
        assert refused.value.code == code and run_id in refused.value.message
