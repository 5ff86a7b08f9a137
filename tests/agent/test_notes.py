"""Notes of hooks and providers, and the outcome that has those of the last turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, RunContext, tool
from weftline.details import PlannerNote
from weftline.hooks import AfterModel, BeforeModel, ToolAfter
from weftline.kernel.notes import RunNote
from weftline.messages import Assistant
from weftline.providers.base import Chunk, ModelRequest
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

PATIENCE_S = 60


class Talkative(ScriptedModel):
    """Says how it is doing."""

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        request.note("warming up", {"gpu": "1"})
        return super().stream(request)


@tool(effect="read")
def look(n: int = 0) -> str:
    """Looks."""
    return f"Seen {n}. " + "x" * 200_000


@pytest.mark.requirement("run.note.published")
async def test_notes_of_hooks_and_providers_never_reach_a_model() -> None:
    slow_down = {"error": {"class": "rate_limit", "message": "Slow down.", "retryable": False}}
    model = Talkative([calls("look", n=1), slow_down])
    second = Talkative(["", "", "Done."])
    agent = Agent(model, tools=[look], fallbacks=["lab:script"])

    @agent.on(BeforeModel)
    def before(point: BeforeModel, context: RunContext[Any]) -> None:
        context.note(f"asking {point.turn}", {"why": "because"})

    @agent.on(ToolAfter)
    def after(point: ToolAfter, context: RunContext[Any]) -> None:
        context.note("looked")

    models = Catalog()
    models.add(second, name="lab")
    async with asyncio.timeout(PATIENCE_S), Engine(models=models) as engine:
        run = await engine.start(agent, "Go.")
        result = await run.result()
        told = [event async for event in run.events(profile=[PlannerNote]) if isinstance(event, PlannerNote)]
        plain = [event async for event in run.events()]
    assert [(note.text, note.labels, note.turn) for note in told] == [
        ("warming up", {"gpu": "1"}, 0),
        ("asking 0", {"why": "because"}, 0),
        ("looked", {}, 0),
        ("warming up", {"gpu": "1"}, 1),
        ("asking 1", {"why": "because"}, 1),
        ("Slow down.", {"code": "rate_limited"}, 1),
        ("warming up", {"gpu": "1"}, 1),
        ("asking 1", {"why": "because"}, 1),
    ]
    assert len(result.notes) == 4 and {note.turn for note in result.notes} == {1}
    assert result.notes[0] == RunNote("warming up", {"gpu": "1"}, 1)
    for request in (*model.requests, *second.requests):
        assert not any(word in str(request.messages) + str(request.system) for word in ("warming", "asking", "looked"))
    assert not any(word in str(event) for event in plain for word in ("warming", "asking", "looked"))


async def test_a_note_that_is_none_is_refused() -> None:
    refused: list[str] = []
    agent = Agent(ScriptedModel(["Done."]))

    @agent.on(BeforeModel)
    def before(point: BeforeModel, context: RunContext[Any]) -> None:
        for wrong in (("",), ("x" * 8_001,), (7,), ("x", {"a": 1}), ("x", {"a": "b" * 257}), ("x", "labels")):
            with pytest.raises(ValueError, match="a note") as error:
                context.note(*wrong)
            refused.append(str(error.value))

    assert (await agent.run("Go.")).notes == ()
    assert refused[:3] == ["a note must be a string of 1 to 8,000 characters"] * 3
    assert refused[3:] == ["the labels of a note are up to 16 strings of 256 characters, by name"] * 3


@tool(effect="read", terminal=True)
def submit(answer: str) -> str:
    """Submits."""
    return f"Submitted {answer}."


@pytest.mark.requirement("run.end.output")
async def test_run_outcome_has_answer_results_notes_and_usage(tmp_path: Path) -> None:
    helper = Agent(ScriptedModel([calls("submit", answer="42")]), name="helper", tools=[submit])
    turns = [calls(("look", {"n": 2}), ("look", {"n": 1})), calls("ask_helper", task="?"), "Done."]
    agent = Agent(ScriptedModel(turns), name="boss", tools=[look, helper.as_tool("Helps.", name="ask_helper")])

    @agent.on(AfterModel)
    def after(point: AfterModel, context: RunContext[Any]) -> None:
        context.note(f"turn {point.turn}")

    ender = Agent(ScriptedModel([calls("submit", answer="1")]), name="ender", tools=[submit])
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent, ender]) as engine:
        run = await engine.start(agent, "Go.")
        result = await run.result()
        [_, _, delegated] = (await run.snapshot()).calls
        below = await engine.attach(delegated.child_id or "").result()
        ended = await (await engine.start(ender, "Go.")).result()
    assert (result.agent, result.run_id, result.status) == ("boss", run.id, "succeeded")
    assert isinstance(result.final, Assistant) and result.final.text == "Done." == result.text
    assert [(call.name, call.args) for call in result.calls] == [
        ("look", {"n": 2}),
        ("look", {"n": 1}),
        ("ask_helper", {"task": "?"}),
    ]
    assert [len(call.result) for call in result.calls[:2]] == [200_008, 200_008]
    assert [note.text for note in result.notes] == ["turn 2"] and result.usage.input > result.own_usage.input > 0
    assert result.final_call is None
    assert (ended.agent, ended.final, ended.final_call, ended.text) == ("ender", None, None, "")
    assert [call.result for call in ended.calls] == ["Submitted 1."]
    assert below.final is None and below.final_call is not None
    assert below.final_call.result == "Submitted 42."
