"""An agent is a definition: what other libraries let one hold is held by its runs, threads and engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from weftline import Agent, Conflict, Engine, Limits, OutputReady, WeftlineError, files, tool
from weftline.agent.hooks import ToolGate
from weftline.agent.results import InvalidOutput
from weftline.messages import Usage
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import Tool

from .kit import results_in

PATIENCE_S = 60.0


@tool
def look() -> str:
    """Looks."""
    return "seen"


class Shelf:
    """A set of tools that tells how often it was opened and closed."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0

    async def open(self) -> Sequence[Tool]:
        self.opened += 1
        return [look]

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.requirement("loop.agent.destroy")
async def test_closing_an_engine_closes_what_its_agents_opened_and_refuses_further_runs() -> None:
    shelf = Shelf()
    agent = Agent(ScriptedModel([calls("look"), "Done."]), tools=[shelf])
    assert shelf.opened == 0
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        await asyncio.gather(*[agent.run("Go.", engine=engine) for _ in range(3)])
        await agent.run("Go.", engine=engine)
        assert (shelf.opened, shelf.closed) == (1, 0)
        await engine.close()
        await engine.close()
        assert (shelf.opened, shelf.closed) == (1, 1)
        with pytest.raises(Conflict, match="not open"):
            await agent.run("Go.", engine=engine)


@pytest.mark.requirement("loop.agent.one_run")
async def test_runs_of_one_agent_do_not_disturb_each_other_and_those_of_a_thread_take_turns() -> None:
    begun, free = asyncio.Event(), asyncio.Event()
    under_way: list[str] = []

    @tool(effect="read")
    async def wait() -> str:
        """Waits."""
        under_way.append("wait")
        begun.set()
        await free.wait()
        return "free"

    agent = Agent(ScriptedModel([calls("wait"), "Done."]), tools=[wait])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        first = await engine.start(agent, "One.", thread="t")
        await begun.wait()
        second = await engine.start(agent, "Two.", thread="t")
        with agent.override(model=ScriptedModel(["Beside."])):
            assert (await agent.run("Three.", engine=engine)).text == "Beside."
        assert under_way == ["wait"], "the second run of the thread waits for the first"
        free.set()
        results = [await run.result() for run in (first, second)]
    assert [result.status for result in results] == ["succeeded", "succeeded"]
    assert len(results[1].messages) == 2 + len(results[1].new_messages)


@pytest.mark.requirement("loop.agent.reset")
async def test_a_run_holds_nothing_of_the_one_before_it() -> None:
    model = ScriptedModel(["Done."])
    agent = Agent(model)
    await agent.run("First?")
    with pytest.raises(WeftlineError, match="needs a prompt"):
        await agent.run()
    await agent.run("Second?")
    assert len(model.requests[1].messages) == 1


@pytest.mark.requirement("loop.agent.result")
async def test_a_result_counts_every_model_call_also_one_that_failed() -> None:
    busy = {"error": {"class": "overloaded", "message": "busy"}, "usage": {"input": 5, "output": 0}}
    fine = {"text": "Done.", "usage": {"input": 7, "output": 2, "cached": 3}}
    result = await Agent(ScriptedModel([busy, fine])).run("Go.")
    assert (result.status, result.text, result.output, result.turns, result.attempts) == (
        "succeeded",
        "Done.",
        "Done.",
        1,
        2,
    )
    assert result.usage == Usage(input=12, output=2, cached=3)
    assert result.elapsed_ms > 0, "it waited before it tried again"


class Total(BaseModel):
    eur: int


@pytest.mark.requirement("loop.output.forced", "loop.output.hidden")
async def test_a_typed_answer_takes_no_call_of_its_own_and_no_tool_of_ours() -> None:
    usage = {"usage": {"input": 7, "output": 2}}
    model = ScriptedModel([{**calls("look"), **usage}, {"text": '{"eur": 3}', **usage}])
    agent = Agent(model, tools=[look], output=Total)
    ready: list[Any] = []
    gated: list[str] = []
    agent.on(OutputReady)(lambda at: ready.append(at.output))
    agent.on(ToolGate)(lambda at: gated.append(at.tool))
    result = await agent.run("Go.")
    assert (result.output, ready) == (Total(eur=3), [Total(eur=3)])
    assert result.usage == Usage(input=14, output=4)
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["look"], ["look"]]
    assert all(request.output_schema is not None for request in model.requests)
    assert gated == [call.name for call in result.calls] == ["look"]


@pytest.mark.requirement("loop.output.invalid")
async def test_an_answer_that_does_not_fit_is_sent_back_once_and_both_are_counted() -> None:
    bad = {"text": '{"eur": "much"}', "usage": {"input": 7, "output": 2}}
    model = ScriptedModel([bad, bad])
    with pytest.raises(InvalidOutput) as caught:
        await Agent(model, output=Total).run("Go.")
    assert len(model.requests) == 2
    assert "eur" in model.requests[1].messages[-1].text  # type: ignore[union-attr]
    assert caught.value.result.usage == Usage(input=14, output=4)


@pytest.mark.requirement("loop.dedup.reads", "loop.dedup.read_before_edit")
async def test_what_a_run_has_read_counts_for_that_run_alone(tmp_path: Path) -> None:
    """The next run of a thread does not see the results of this one: a note in their place would lead nowhere."""
    (tmp_path / "f").write_text("one\ntwo\n")
    read, part = calls("read_file", path="f"), calls("read_file", path="f", limit=1)
    change = calls("edit", path="f", old_string="one", new_string="1")
    again = calls("edit", path="f", old_string="two", new_string="2")
    model = ScriptedModel([change, read, read, part, change, again, read, "Done."])
    agent = Agent(model, tools=[files(tmp_path, require_read_before_edit=True)], limits=Limits(loop_soft=0))
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        first = await agent.run("Go.", thread="t", engine=engine)
        with agent.override(model=ScriptedModel([change, read, "Done."])):
            second = await agent.run("Go on.", thread="t", engine=engine)
    refused, whole, stub, line, *edited, changed = results_in(first.new_messages)
    assert "read it with read_file before" in refused
    assert (whole, line.splitlines()[0], changed) == ("1\tone\n2\ttwo", "1\tone", "1\t1\n2\t2")
    assert "has not changed since" in stub
    assert [text.startswith("Edited f") for text in edited] == [True, True]
    assert "read it with read_file before" in results_in(second.new_messages)[0]
    assert results_in(second.new_messages)[1] == changed


@pytest.mark.requirement("loop.dedup.read_before_edit")
async def test_what_a_run_has_read_is_known_to_the_next_process(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "f").write_text("one\n")
    begun, free = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Waits."""
        begun.set()
        await free.wait()
        return "free"

    change = calls("edit", path="f", old_string="one", new_string="1")
    model = ScriptedModel([calls("read_file", path="f"), calls("wait"), change, "Done."])
    agent = Agent(model, name="editor", tools=[files(place, require_read_before_edit=True), wait])
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path / "data", agents=[agent], drain_s=0) as engine:
            run = await engine.start(agent, "Go.")
            await begun.wait()
        free.set()
        async with Engine(tmp_path / "data", agents=[agent]) as engine:
            result = await engine.attach(run.id, agent).result()
    assert [call.ok for call in result.calls] == [True, True, True]
    assert (place / "f").read_text() == "1\n"


@pytest.mark.requirement("loop.agent.options")
async def test_an_option_that_an_agent_does_not_have_is_refused_when_it_is_built() -> None:
    with pytest.raises(TypeError, match="instruction"):
        Agent("lab:script", instruction="Be brief.")  # type: ignore[call-overload]  # pyright: ignore
    everything = Agent(
        "lab:script", name="all", instructions="Be brief.", tools=[look], tool_aliases={"look": "See"}, hooks=[]
    )
    assert everything.tool_aliases == {"look": "See"}
    with pytest.raises(WeftlineError, match="model"):
        await Agent().run("Go.")
