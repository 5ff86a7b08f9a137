"""An agent is a definition: what other libraries let one hold is held by its runs, threads and engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from weftline import Agent, Engine, Limits, RunCancelled, RunFailed, Settings, WeftlineError, files, hook, skills, tool
from weftline.behaviors import Behavior
from weftline.errors import Conflict
from weftline.hooks import OutputReady, SkillsDeactivate, ToolAfter, ToolGate
from weftline.messages import Usage, User
from weftline.runs import InvalidOutput
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import Tool
from weftline.tools.contexts.process import ProcessContext

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
async def test_closing_an_engine_closes_its_agents_tools() -> None:
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
async def test_runs_of_an_agent_are_independent_unless_of_a_thread() -> None:
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
    assert results[1].messages == results[0].messages + results[1].new_messages


@pytest.mark.requirement("loop.agent.reset")
async def test_a_run_holds_nothing_of_the_one_before_it(tmp_path: Path) -> None:
    (tmp_path / "tea").mkdir()
    (tmp_path / "tea" / "SKILL.md").write_text("---\nname: tea\ndescription: About tea.\n---\nBoil the water.\n")
    shelf = skills(tmp_path)
    model = ScriptedModel(["Done."])
    agent = Agent(model, tools=[shelf])
    ended: list[tuple[str, str]] = []
    agent.on(SkillsDeactivate)(lambda at: ended.append((at.skill.name, at.reason)))
    async with Engine() as engine:
        first = await engine.start(agent, "First?")
        await first.follow_up("And then?")
        await first.result()
        with pytest.raises(WeftlineError, match="needs a prompt"):
            await agent.run(engine=engine)
        await shelf.activate("tea")
        await shelf.reset()
        assert ended == [("tea", "reset")]
        asked = len(model.requests)
        await agent.run("Second?", engine=engine)
    request = model.requests[asked]
    assert request.messages == (User.of("Second?"),)
    assert "Boil the water." not in (request.system or "")


def spending(text: str, **usage: int) -> dict[str, Any]:
    return {"text": text, "usage": usage}


@pytest.mark.requirement("loop.agent.result")
async def test_result_counts_every_model_call() -> None:
    busy = {"error": {"class": "overloaded", "message": "busy"}, "usage": {"input": 5, "output": 0}}
    clerk = Agent(ScriptedModel([spending("Found.", input=100, output=10, cache_write=40)]), name="clerk")
    ask = {**calls("clerk", task="Look."), "usage": {"input": 1, "output": 1}}
    model = ScriptedModel([busy, ask, spending("Done.", input=7, output=2, cached=3)])
    result = await Agent(model, tools=[clerk.as_tool("Looks.")]).run("Go.")
    assert (result.status, result.text, result.output) == ("succeeded", "Done.", "Done.")
    assert (result.turns, result.attempts) == (2, 3)
    assert result.usage == Usage(input=113, output=13, cached=3, cache_write=40)
    assert result.elapsed_ms > 0, "it waited before it tried again"


@pytest.mark.requirement("loop.agent.result")
async def test_cancelled_run_is_returned_and_failed_run_is_raised() -> None:
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedModel([{**calls("wait"), "usage": {"input": 3, "output": 4}}, "Never."]), tools=[wait])
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.")
        await begun.wait()
        await run.cancel()
        result = await run.result()
    assert (result.status, result.usage, result.turns) == ("cancelled", Usage(input=3, output=4), 1)
    with pytest.raises(RunCancelled):
        _ = result.output
    broken = {"error": {"class": "auth", "message": "No."}, "usage": {"input": 9, "output": 0}}
    with pytest.raises(RunFailed) as caught:
        await Agent(ScriptedModel([broken])).run("Go.")
    assert (caught.value.result.status, caught.value.result.usage) == ("failed", Usage(input=9))


class Total(BaseModel):
    eur: int


@pytest.mark.requirement("loop.output.forced", "loop.output.hidden")
async def test_typed_answer_needs_no_call_and_no_tool() -> None:
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
async def test_unfitting_answer_is_sent_back_once_and_counted() -> None:
    bad = {"text": '{"eur": "much"}', "usage": {"input": 7, "output": 2}}
    model = ScriptedModel([bad, bad])
    with pytest.raises(InvalidOutput) as caught:
        await Agent(model, output=Total).run("Go.")
    assert len(model.requests) == 2
    assert "eur" in model.requests[1].messages[-1].text  # type: ignore[union-attr]
    assert caught.value.result.usage == Usage(input=14, output=4)


@pytest.mark.requirement("loop.dedup.reads", "loop.dedup.read_before_edit")
async def test_read_files_count_for_that_run_alone(tmp_path: Path) -> None:
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
async def test_read_files_are_known_to_the_next_process(tmp_path: Path) -> None:
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


@pytest.mark.requirement("loop.output.hidden")
def test_the_name_of_an_output_tool_is_nobody_elses() -> None:
    @tool(name="__output__")
    def output() -> str:
        """Gives an answer."""
        return ""

    for options in ({"tools": [output]}, {"tools": [look], "tool_aliases": {"look": "__output__"}}):
        with pytest.raises(ValueError, match="__output__"):
            Agent("lab:script", **options)  # type: ignore[arg-type]


@pytest.mark.requirement("loop.agent.options")
async def test_an_agent_has_what_it_is_built_from(tmp_path: Path) -> None:
    """What other libraries give as servers, skills and an execution context are in the list of tools."""
    (tmp_path / "tea").mkdir()
    (tmp_path / "tea" / "SKILL.md").write_text("---\nname: tea\ndescription: About tea.\n---\nBoil the water.\n")
    told: list[str] = []

    @hook(ToolAfter)
    def watch(point: ToolAfter) -> None:
        told.append(point.display_name)

    shelf, model = Shelf(), ScriptedModel([calls("See"), "Done."])
    agent = Agent(
        model,
        name="all",
        instructions="Be brief.",
        tools=[shelf, skills(tmp_path), files(tmp_path, context=ProcessContext(timeout_s=5))],
        tool_aliases={"look": "See"},
        behavior=Behavior(cache=False),
        settings=Settings(reasoning="low"),
        hooks=[watch],
        eager=True,
    )
    async with Engine(agents=[agent]) as engine:
        assert (await agent.run("Go.", thread="t", engine=engine)).text == "Done."
        assert len(await engine.thread("t").messages()) == 4
    [request, _] = model.requests
    offered = [spec.name for spec in request.tools]
    assert {"See", "skills_use", "read_file"} <= set(offered)
    assert (request.cache, request.reasoning, told, shelf.opened) == (False, 30, ["See"], 1)
    assert (request.system or "").startswith("Be brief.") and "About tea." in (request.system or "")


@pytest.mark.requirement("loop.agent.options")
async def test_invalid_agent_part_is_refused() -> None:
    with pytest.raises(TypeError, match="instruction"):
        Agent("lab:script", instruction="Be brief.")  # type: ignore[call-overload]  # pyright: ignore
    with pytest.raises(ValueError, match="two tools"):
        Agent("lab:script", tools=[look, look])
    with pytest.raises(WeftlineError, match="model"):
        await Agent().run("Go.")  # a model may be left to each run, but not to none


async def test_nothing_is_called_by_a_name_that_nobody_gave(caplog: pytest.LogCaptureFixture) -> None:
    refused: dict[str, Any] = {"error": {"class": "invalid_request", "message": "no such thing"}}
    async with Engine() as engine:
        for name in ("ScriptedModel:script", "ScriptedModel-2:script"):
            run = await engine.start(Agent(ScriptedModel([refused])), "Hi.")
            with pytest.raises(RunFailed) as failed:
                await run.result()
            assert failed.value.result.agent is None
            assert f"model {name}," in caplog.text
    assert "given-" not in caplog.text and "agent 1" not in caplog.text
