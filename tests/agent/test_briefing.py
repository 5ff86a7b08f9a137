"""What a subagent is told, and arguments that make no task for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, Field

from weftline import Agent, Engine, ToolFailed
from weftline.behaviors import Prompt
from weftline.messages import User
from weftline.store.rows import RunFilter
from weftline.testing import ScriptedModel, calls


class Query(BaseModel):
    topic: str = Field(description="What it is about.", min_length=2)
    depth: int = 3
    language: str | None = None


def brief(topic: str, depth: int = 3) -> str:
    """Makes a task.

    Args:
        topic: What it is about.
    """
    if topic == "nothing":
        return ""
    return f"Dig {depth} m for {topic}."


def about(topic: str) -> str:
    return f"About {topic}."


def asking(*turns: Any, **options: Any) -> tuple[Agent[Any, Any], ScriptedModel, ScriptedModel]:
    below, above = ScriptedModel(["Found."]), ScriptedModel([*turns, "Done."])
    digger = Agent(below, name="digger", instructions="You dig.")
    prompts = [Prompt("dig", "Please dig for {topic}."), Prompt("do", "Do it: {task}")]
    return Agent(above, name="boss", tools=[digger.as_tool("Digs.", **options)], prompts=prompts), above, below


@pytest.mark.requirement("run.child.message")
@pytest.mark.parametrize(
    ("options", "args", "told"),
    [
        ({}, {"task": "Dig."}, "Dig."),
        ({"prompt_id": "dig", "args": Query, "text": "No."}, {"topic": "tin"}, "Please dig for tin."),
        ({"prompt_id": "do"}, {"task": "Dig."}, "Do it: Dig."),
        ({"template": "Find {topic}.", "prompt": brief}, {"topic": "tin"}, "Find tin."),
        ({"template": "{depth}: {topic}", "args": Query}, {"topic": "tin"}, "3: tin"),
        ({"text": "Do as always.", "prompt": brief}, {}, "Do as always."),
        ({"text": "Do as always.", "args": Query}, {"topic": "tin"}, "Do as always."),
        ({"prompt": brief}, {"topic": "tin"}, "Dig 3 m for tin."),
        ({"prompt": about, "args": Query}, {"topic": "tin"}, "About tin."),
        ({"args": Query}, {"topic": "tin", "depth": 4}, '{"depth":4,"language":null,"topic":"tin"}'),
    ],
)
async def test_subagent_prompt_is_made_by_the_first_given_way(
    options: dict[str, Any], args: dict[str, Any], told: str
) -> None:
    agent, _, below = asking(calls("digger", **args), **options)
    await agent.run("Go.")
    (request,) = below.requests
    (said,) = request.messages
    assert isinstance(said, User) and said.text == told
    assert request.system == "You dig."


@pytest.mark.requirement("run.child.message")
async def test_a_tool_may_give_its_agent_other_instructions() -> None:
    agent, _, below = asking(calls("digger", task="Dig."), instructions="Dig gently.")
    await agent.run("Go.")
    assert below.requests[0].system == "Dig gently."


async def test_the_parameters_of_the_tool_are_those_of_its_arguments() -> None:
    schemas: list[dict[str, Any]] = []
    for options in ({"args": Query}, {"prompt": brief}, {"template": "{a} {b} {a}"}, {"text": "Go."}):
        agent, above, _ = asking(**options)
        await agent.run("Go.")
        (tool,) = above.requests[0].tools
        schemas.append({"schema": tool.parameters, "about": tool.description})
    model, function, template, text = [msgspec.json.decode(one["schema"]) for one in schemas]
    assert model["properties"]["topic"] | {"title": ""} == {
        "description": "What it is about.",
        "minLength": 2,
        "type": "string",
        "title": "",
    }
    assert model["required"] == ["topic"] and set(model["properties"]) == {"topic", "depth", "language"}
    assert set(function["properties"]) == {"topic", "depth"} and function["required"] == ["topic"]
    assert list(template["properties"]) == ["a", "b"] and template["required"] == ["a", "b"]
    assert text.get("properties", {}) == {}
    assert {one["about"] for one in schemas} == {"Digs."}


def refuse(topic: str) -> str | None:
    if topic == "worms":
        raise ToolFailed("no worms")
    return None if topic != "gold" else "There is no gold."


@pytest.mark.requirement("run.child.refused")
@pytest.mark.parametrize(
    ("options", "args", "reason", "words"),
    [
        ({"args": Query}, {"topic": 7}, "invalid_arguments", "topic"),
        ({"args": Query}, {}, "missing_fields", "topic"),
        ({"args": Query, "check": refuse}, {"topic": "gold"}, "invalid_arguments", "There is no gold."),
        ({"args": Query, "check": refuse}, {"topic": "worms"}, "invalid_arguments", "no worms"),
        ({"template": "In {language}.", "args": Query}, {"topic": "tin"}, "missing_fields", "language must be given"),
        ({"template": "{depth:z}", "args": Query}, {"topic": "tin"}, "invalid_arguments", "could not be started"),
        ({"prompt": brief}, {"topic": "nothing"}, "invalid_arguments", "without a task"),
        ({"prompt_id": "dig"}, {"task": "Dig."}, "invalid_arguments", "needs 'topic'"),
        ({"prompt_id": "dug", "args": Query}, {"topic": "tin"}, "invalid_arguments", "no prompt 'dug'"),
    ],
)
async def test_arguments_without_a_task_create_no_child(
    options: dict[str, Any], args: dict[str, Any], reason: str, words: str
) -> None:
    agent, _, below = asking(calls("digger", **args), **options)
    async with Engine() as engine:
        run = await engine.start(agent, "Go.")
        (call,) = (await run.result()).calls
        assert await engine.store.log.count_runs(RunFilter()) == 1
    assert not call.ok and words in str(call.result) and below.requests == []
    assert call.failure is not None and call.failure.hint is not None
    hint = call.failure.hint
    assert (hint.reason, hint.tool, hint.restrict_to_tool) == (reason, "digger", True)


@pytest.mark.requirement("run.child.message")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"template": "{a}", "text": "b"}, "a template or a text, not both"),
        ({"template": ""}, "template is empty"),
        ({"template": "{a.b}"}, "template may name arguments"),
        ({"template": "{a"}, "template is not a template"),
        (
            {"template": "{topik}", "args": Query},
            "template names {topik}, which is not an argument of it.",
        ),
        ({"text": " "}, "text is empty"),
    ],
)
def test_unworkable_way_is_refused_at_definition(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        asking(**options)
    assert words in str(refused.value)


def test_value_that_is_not_a_function_is_refused() -> None:
    with pytest.raises(TypeError, match="check must be a function, not str"):
        asking(check="no")  # pyright: ignore[reportArgumentType]
