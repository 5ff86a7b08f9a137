"""Runs that code gives ids: started once, with what hangs on them: subagents, threads, files, replays and traces."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine
from weftline.agent.engine.logs import MAX_RETAINED
from weftline.errors import Conflict, InvalidRequest
from weftline.events import AwaitOpened
from weftline.runs import trace
from weftline.store.rows import RunFilter
from weftline.testing import ScriptedModel

from .test_child_awaits import child_of, family
from .test_tracing import Traces

PATIENCE_S = 60
ONES = ("nightly-7", "run_1" + 12 * "a")
"""The second one looks like a generated id, of another run."""


def greeter(*answers: str) -> Agent[Any, Any]:
    return Agent(ScriptedModel(list(answers) or ["Hello."] * 9), name="greeter")


@pytest.mark.requirement("run.start.run_id")
@pytest.mark.parametrize("durable", [True, False])
async def test_run_has_its_given_id_exclusively(durable: bool, tmp_path: Path) -> None:
    agent = greeter()
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path if durable else None, agents=[agent]) as engine:
        result = await agent.run("Hi!", engine=engine, run_id="mine")
        assert (result.run_id, result.text) == ("mine", "Hello.")
        generated = [(await agent.run("Hi!", engine=engine)).run_id for _ in range(2)]
        assert len({"mine", *generated}) == 3
        for taken in ("mine", generated[0]):
            with pytest.raises(Conflict) as refused:
                await engine.start(agent, "Again!", run_id=taken)
            assert refused.value.code == "run_exists"
        assert (await engine.attach("mine").result()).text == "Hello."
        for wrong in ("", "a b", "a.b", "é", "x" * 129):
            with pytest.raises(InvalidRequest, match="run_id: must have 1 to 128 letters, digits, '_' and '-'"):
                await engine.start(agent, "Hi!", run_id=wrong)
        with pytest.raises(TypeError, match="run_id"):
            await engine.start(agent, "Hi!", run_id=7)  # pyright: ignore[reportArgumentType]
        assert len(await (await engine.runtime()).stored.logs.runs(RunFilter())) == 3


@pytest.mark.requirement("run.start.run_id")
@pytest.mark.parametrize("durable", [True, False])
async def test_of_starts_that_race_for_an_id_one_wins(durable: bool, tmp_path: Path) -> None:
    agent = greeter()
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path if durable else None, agents=[agent]) as engine:

        async def start() -> str:
            try:
                return (await (await engine.start(agent, "Hi!", run_id="race")).result()).text
            except Conflict as error:
                return error.code

        assert Counter(await asyncio.gather(*[start() for _ in range(5)])) == {"Hello.": 1, "run_exists": 4}
        assert len(await (await engine.runtime()).stored.logs.runs(RunFilter())) == 1


async def test_the_same_key_gives_the_same_run_of_that_id(tmp_path: Path) -> None:
    agent = greeter()
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        first = await engine.start(agent, "Hi!", key="k", run_id="mine")
        assert (await engine.start(agent, "Hi!", key="k", run_id="mine")).id == first.id == "mine"
        others: tuple[Any, ...] = ({"run_id": "yours"}, {})
        for other in others:
            with pytest.raises(Conflict) as refused:
                await engine.start(agent, "Hi!", key="k", **other)
            assert refused.value.code == "idempotency_conflict"
    async with Engine(tmp_path, agents=[agent]) as engine:
        assert (await engine.start(agent, "Hi!", key="k", run_id="mine")).id == "mine"
        with pytest.raises(Conflict):
            await engine.start(agent, "Hi!", run_id="mine")


async def test_an_engine_in_memory_forgets_an_id_with_its_run() -> None:
    agent = greeter()
    async with asyncio.timeout(PATIENCE_S), Engine(agents=[agent]) as engine:
        await agent.run("Hi!", engine=engine, run_id="mine")
        for _ in range(MAX_RETAINED):
            await agent.run("Hi!", engine=engine)
        assert (await agent.run("Hi!", engine=engine, run_id="mine")).run_id == "mine"


@pytest.mark.parametrize("run_id", ONES)
async def test_subagent_question_reaches_a_given_id_after_restart(run_id: str, tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, agents=[family(), greeter()]) as engine:
            await engine.start(engine.agents["greeter"], "Hi!")
            run = await engine.start(engine.agents["boss"], "Go.", run_id=run_id, thread="t")
            clerk = await child_of(run)
            payer = await child_of(engine.attach(clerk))
            async for event in engine.attach(payer):
                if isinstance(event, AwaitOpened):
                    break
            for seen_from in (run_id, clerk, payer):
                (asked,) = await engine.awaits(run_id=seen_from)
                assert (asked.run_id, asked.root_run_id) == (payer, run_id)
        async with Engine(tmp_path, agents=[family(), greeter()]) as engine:
            run = engine.attach(run_id)
            assert [one.root_run_id for one in await engine.awaits()] == [run_id]
            (asked,) = await engine.awaits(run_id=run_id)
            await run.approve(f"{payer}:{asked.id}")
            result = await run.result()
            assert (result.text, result.run_id) == ("Thanks.", run_id)
            assert result.usage.input > 0 and result.calls[0].child is not None
            events = [event async for event in run.events(children=True)]
            assert {event.run_id for event in events} == {run_id, clerk, payer}


@pytest.mark.parametrize("run_id", ONES)
async def test_run_of_given_id_ends_with_all_below_it(run_id: str, tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[family(), greeter()]) as engine:
        await engine.start(engine.agents["greeter"], "Hi!")
        run = await engine.start(engine.agents["boss"], "Go.", run_id=run_id)
        clerk = await child_of(run)
        payer = await child_of(engine.attach(clerk))
        await run.pause()
        await run.resume()
        receipt = await run.cancel()
        assert receipt.status == "cancelled"
        for one in (run_id, clerk, payer):
            assert (await engine.attach(one).snapshot()).status == "cancelled"


@pytest.mark.parametrize("run_id", ONES)
async def test_run_of_given_id_is_exported_imported_replayed_and_forked(run_id: str, tmp_path: Path) -> None:
    agent = family()
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path / "a", agents=[agent, greeter()]) as engine:
            await engine.start(engine.agents["greeter"], "Hi!")
            run = await engine.start(agent, "Go.", run_id=run_id, thread="t")
            clerk = await child_of(run)
            payer = await child_of(engine.attach(clerk))
            async for event in engine.attach(payer):
                if isinstance(event, AwaitOpened):
                    break
            (asked,) = await engine.awaits(run_id=run_id)
            await run.approve(f"{payer}:{asked.id}")
            assert (await run.result()).text == "Thanks."
            assert (await engine.replay(run_id)).divergence is None
            forked = await engine.fork(run_id, turn=1, agent=agent)
            assert forked.id.startswith("run_")
            file = await engine.export(run_id, tmp_path / "run.jsonl")
            whole = await engine.export_thread("t", tmp_path / "thread.jsonl")
        async with Engine(tmp_path / "b", agents=[agent]) as engine:
            assert (await engine.import_runs(file)).created == (run_id, clerk, payer)
            again = await engine.import_runs(whole)
            assert (again.created, again.present) == ((), (run_id, clerk, payer))
            assert (await engine.attach(run_id).result()).text == "Thanks."
            assert (await engine.replay(run_id)).divergence is None
            assert len(await engine.thread("t").messages()) > 0
            with pytest.raises(Conflict) as refused:
                await engine.start(agent, "Go.", run_id=run_id)
            assert refused.value.code == "run_exists"
        taken = greeter()
        async with Engine(tmp_path / "c", agents=[taken]) as engine:
            await (await engine.start(taken, "Hi!", run_id=run_id)).result()
            with pytest.raises(Conflict, match="another run has this id") as refused:
                await engine.import_runs(file)
            assert refused.value.code == "import_conflict"


async def test_run_of_given_id_is_traced_with_those_below_it() -> None:
    traces, agent = Traces(), greeter()
    boss = Agent(
        ScriptedModel([{"tool_calls": [{"name": "ask", "args": {"task": "x"}}]}, "Done."]),
        name="boss",
        tools=[agent.as_tool("Asks.", name="ask")],
    )
    trace(boss, tracer_provider=traces.provider)
    async with asyncio.timeout(PATIENCE_S):
        await boss.run("Go.", run_id="traced")
    assert traces.tree()["invoke_agent ask"] == "execute_tool ask"
    assert (traces.spans["invoke_agent boss"].attributes or {})["weftline.run_id"] == "traced"
