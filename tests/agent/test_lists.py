"""`engine.runs()` and `engine.threads()`: what an engine has, by the filters of the HTTP lists."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from weftline import Agent, Engine, RunFailed
from weftline.agent.engine import logs
from weftline.errors import Conflict, InvalidRequest
from weftline.testing import ScriptedModel, calls

PATIENCE_S = 60
BROKEN = {"error": {"class": "auth", "message": "bad key", "retryable": False}}


def greeter(name: str = "greeter") -> Agent[None, str]:
    return Agent(ScriptedModel(["Hello!"] * 9), name=name)


async def test_runs_are_listed_newest_first_with_what_they_came_to(tmp_path: Path) -> None:
    agent, broken = greeter(), Agent(ScriptedModel([BROKEN]), name="broken")
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent, broken]) as engine:
        first = await (await engine.start(agent, "Hi.", thread="ann", metadata={"team": "blue"})).result()
        failed = await engine.start(broken, "Hi.")
        with pytest.raises(RunFailed):
            await failed.result()
        newest, oldest = [run async for run in engine.runs()]
        assert (newest.id, newest.status, newest.code, newest.text) == (failed.id, "failed", "auth", None)
        assert newest.error and newest.thread_id is None
        assert (oldest.id, oldest.status, oldest.agent) == (first.run_id, "succeeded", "greeter")
        assert (oldest.text, oldest.turns, oldest.usage) == ("Hello!", 1, first.usage)
        assert oldest.started_at and oldest.ended_at and oldest.created_at <= oldest.started_at <= oldest.ended_at
        (thread,) = [one async for one in engine.threads()]
        assert (thread.name, thread.id, thread.ended_at) == ("ann", oldest.thread_id, None)


async def test_filters_of_runs_must_all_match() -> None:
    ann, bob = greeter("ann"), greeter("bob")
    async with asyncio.timeout(PATIENCE_S), Engine(agents=[ann, bob]) as engine:
        runs = [
            await engine.start(agent, "Hi.", thread=thread, metadata={"team": team})
            for agent, thread, team in ((ann, "x", "blue"), (bob, "x", "blue"), (bob, "y", "red"))
        ]
        for run in runs:
            await run.result()
        one, two, three = (run.id for run in runs)
        assert [run.id async for run in engine.runs(agent="bob")] == [three, two]
        assert [run.id async for run in engine.runs(thread="x")] == [two, one]
        assert [run.id async for run in engine.runs(thread="x", agent="bob", metadata={"team": "blue"})] == [two]
        assert [run.id async for run in engine.runs(metadata={"team": "red"}, status="succeeded")] == [three]
        assert [run.id async for run in engine.runs(id_prefix=one[:-1])] == [one]
        assert [run.id async for run in engine.runs(status="failed")] == []
        assert [run.id async for run in engine.runs(thread="nobody")] == []
        assert [thread.name async for thread in engine.threads()] == ["y", "x"], "a filter created a thread"


async def test_runs_of_subagents_are_listed_with_their_thread_if_asked_for() -> None:
    helper = Agent(ScriptedModel(["Helped."]), name="helper")
    model = ScriptedModel([calls("helper", task="Help."), "Done."])
    boss = Agent(model, name="boss", tools=[helper.as_tool("Helps.")])
    async with asyncio.timeout(PATIENCE_S), Engine(agents=[boss, helper]) as engine:
        run = await engine.start(boss, "Go.", thread="x")
        await run.result()
        assert [one.id async for one in engine.runs(thread="x")] == [run.id]
        child, parent = [one async for one in engine.runs(thread="x", children=True)]
        assert (child.parent, child.thread_id) == (run.id, parent.thread_id) and parent.id == run.id


async def test_lists_go_on_over_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_PAGE", 2)
    agent = greeter()
    async with asyncio.timeout(PATIENCE_S), Engine(agents=[agent]) as engine:
        runs = [await engine.start(agent, "Hi.", thread=f"t{number}") for number in range(4)]
        for run in runs:
            await run.result()
        assert [one.id async for one in engine.runs()] == [run.id for run in reversed(runs)]
        assert [one.name async for one in engine.threads()] == ["t3", "t2", "t1", "t0"]


async def test_threads_that_were_ended_can_be_left_out() -> None:
    agent = greeter()
    async with asyncio.timeout(PATIENCE_S), Engine(agents=[agent]) as engine:
        for name in ("over", "open"):
            await (await engine.start(agent, "Hi.", thread=name)).result()
        await engine.thread("over").end()
        assert [one.name async for one in engine.threads(ended=False)] == ["open"]
        (over,) = [one async for one in engine.threads(ended=True)]
        assert over.name == "over" and over.ended_at and over.created_at <= over.last_used_at <= over.ended_at


async def test_wrong_filters_and_closed_engines_are_refused() -> None:
    engine = Engine()
    with pytest.raises(Conflict):
        await anext(engine.runs())
    with pytest.raises(Conflict):
        await anext(engine.threads())
    async with engine:
        with pytest.raises(InvalidRequest, match="status"):
            await anext(engine.runs(status="done"))  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidRequest, match="id_prefix"):
            await anext(engine.runs(id_prefix="no spaces"))
