"""Of a result that is too large the model reads a preview; the log and the result of the run have it whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, ToolFailed, tool
from weftline.agent.run import Run
from weftline.behaviors import Behavior
from weftline.events import CallFinished
from weftline.messages import Image, Message, Text, ToolResults
from weftline.testing import ScriptedModel, calls
from weftline.tools import Bounded, Paging

from .kit import asked, results_in

PATIENCE_S = 60
LIMIT = 300
PNG = "iVBORw0KGgo="


@tool(effect="read")
def say(size: int) -> str:
    """Says much."""
    return "word  " * (size // 6) + "x" * (size % 6)


@tool(effect="read", bounded=Paging("after", "more"))
def pages(after: str = "") -> Bounded:
    """Lists pages."""
    return Bounded(value={"rows": ["row"] * 100}, returned=100, total=900, truncated=True, next_cursor="c2")


@tool(effect="read")
def fail() -> str:
    """Fails at length."""
    raise ToolFailed("no " * 200)


@tool(effect="read")
def blank() -> str:
    """Returns nothing that could be seen."""
    return " " * 400


@tool(effect="read")
def draw() -> list[Text | Image]:
    """Draws."""
    return [Text("line " * 100), Image("image/png", data=PNG)]


@tool(effect="once", confirm="Really?")
def wait() -> str:
    """Waits."""
    return "waited"


def read(messages: Sequence[Message]) -> list[Any]:
    """What a model reads of the results that were left out."""
    return [json.loads(text) for text in results_in(messages) if text.startswith('{"') and "omitted" in text]


@pytest.mark.requirement("run.result.size_limit")
async def test_larger_success_is_previewed_on_every_turn_and_process(
    tmp_path: Path,
) -> None:
    turns = [
        calls(("say", {"size": LIMIT}), ("say", {"size": LIMIT + 1}), ("pages", {}), ("fail", {}), ("blank", {})),
        calls("wait"),
        "Done.",
    ]
    tools = [say, pages, fail, blank, wait]

    def made() -> tuple[Agent[Any, Any], ScriptedModel]:
        model = ScriptedModel(turns)
        behavior = Behavior(model_result_limit_bytes=LIMIT)
        return Agent(model, name="reader", tools=tools, behavior=behavior), model

    agent, first = made()
    async with asyncio.timeout(PATIENCE_S):
        async with Engine(tmp_path, agents=[agent]) as engine:
            run = await engine.start(agent, "Go.", thread="t")
            question = await asked(run)
        agent, second = made()
        async with Engine(tmp_path, agents=[agent]) as engine:
            run = engine.attach(run.id)
            await run.approve(question.id)
            result = await run.result()
            finished = await finished_calls(run)
            closed = [one for one in (await run.entries(limit=1000)).entries if one.kind == "call.closed"]
            following = await engine.start(agent, "And?", thread="t")
            await asked(following)
            await following.cancel()
    live, later, next_run = first.requests[1], second.requests[0], second.requests[1]
    preview = ("word " * 50)[:139] + "…"
    over, bounded, nothing = read(live.messages)
    assert over == {"omitted": True, "reason": "size_limit", "preview": preview} and len(preview) == 140
    assert bounded.pop("preview").startswith('{"more":"c2","returned":100,"rows":["row","row"')
    assert bounded.pop("bounds") == {"returned": 100, "total": 900, "truncated": True, "next_cursor": "c2"}
    assert bounded == nothing == {"omitted": True, "reason": "size_limit"}
    shown = [message for message in live.messages if isinstance(message, ToolResults)]
    assert shown[0].results[0].text == whole(LIMIT) and shown[0].results[3].text == "no " * 200, "an error stays"
    assert next(one for one in later.messages if isinstance(one, ToolResults)) == shown[0]
    assert next(one for one in next_run.messages if isinstance(one, ToolResults)) == shown[0]
    # Whoever looks at the run has it all.
    assert [len(call.result) for call in result.calls[:2]] == [LIMIT, LIMIT + 1]
    assert results_in(result.messages)[:5] == [call.result for call in result.calls[:5]]
    assert [event.result for event in finished][:5] == [call.result for call in result.calls[:5]]
    assert whole(LIMIT + 1) in str(closed[1].body)


def whole(size: int) -> str:
    return "word  " * (size // 6) + "x" * (size % 6)


async def finished_calls(run: Run[Any]) -> list[CallFinished]:
    return [event async for event in run.events() if isinstance(event, CallFinished)]


@pytest.mark.requirement("run.result.size_limit")
async def test_it_is_off_by_default() -> None:
    model = ScriptedModel([calls("say", size=200_000), "Done."])
    await Agent(model, tools=[say]).run("Go.")
    assert len(results_in(model.requests[1].messages)[0]) == 200_000


async def test_value_that_is_not_a_text_stays() -> None:
    model = ScriptedModel([calls("draw"), "Done."])
    await Agent(model, tools=[draw], behavior=Behavior(model_result_limit_bytes=LIMIT)).run("Go.")
    message = model.requests[1].messages[-1]
    assert isinstance(message, ToolResults)
    text, image = message.results[0].parts
    assert isinstance(text, Text) and json.loads(text.text)["reason"] == "size_limit"
    assert image == Image("image/png", data=PNG)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="model_result_limit_bytes must be 1 or more"):
        Behavior(model_result_limit_bytes=0)
