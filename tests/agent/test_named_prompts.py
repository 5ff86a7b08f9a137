"""Prompts with a version, and what stands in for them at run time."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, RunContext, RunFailed
from weftline.agent.run import Run
from weftline.behaviors import Prompt
from weftline.details import PromptRendered
from weftline.errors import InvalidRequest
from weftline.hooks import SystemRendered
from weftline.testing import ScriptedModel

PATIENCE_S = 60
TONE = Prompt("tone", "Be {tone}.")


def digest(template: str) -> str:
    return f"sha256:{sha256(template.encode()).hexdigest()}"


def agent_of(model: ScriptedModel) -> Agent[Any, Any]:
    def instructions(context: RunContext[Any]) -> str:
        return context.render("tone", tone="kind")

    return Agent(model, name="a", instructions=instructions, prompts=[TONE, Prompt("other", "Hm.", version="v7")])


async def rendered(run: Run[Any]) -> list[tuple[str, str, dict[str, Any]]]:
    events = [event async for event in run.events(profile=[PromptRendered])]
    return [(one.prompt_id, one.version, one.scope) for one in events if isinstance(one, PromptRendered)]


@pytest.mark.requirement("run.prompt.overrides")
async def test_most_specific_override_replaces_a_prompt(tmp_path: Path) -> None:
    gold, red = {"tier": "gold"}, {"team": "red"}
    steps: list[tuple[dict[str, Any], str]] = [
        ({}, "All: {tone}."),
        ({"labels": gold}, "Gold: {tone}."),
        ({"labels": gold | red}, "Gold and red: {tone}."),
        ({"labels": red}, "Red: {tone}."),
        ({"labels": gold}, "Newer gold: {tone}."),
        ({"thread": "ann"}, "Ann: {tone}."),
        ({"thread": "ann", "labels": {"tier": "tin"}}, "Tin Ann: {tone}."),
    ]
    model = ScriptedModel(["Done."])
    agent = agent_of(model)

    async def said(engine: Engine, **options: Any) -> tuple[str | None, list[tuple[str, str, dict[str, Any]]]]:
        run = await engine.start(agent, "Go.", **options)
        await run.result()
        return model.requests[-1].system, await rendered(run)

    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        anywhere: dict[str, Any] = {"thread": None, "labels": {}}
        plain = "tone", digest("Be {tone}."), anywhere
        assert await said(engine) == ("Be kind.", [plain])
        for scope, template in steps:
            await engine.override_prompt("tone", template, by="user:ann", **scope)
        everywhere = "tone", digest("All: {tone}."), anywhere
        assert await said(engine) == ("All: kind.", [everywhere])
        assert (await said(engine, labels=gold))[0] == "Newer gold: kind."
        text, [(_, version, scope)] = await said(engine, labels=gold | red | {"more": "x"})
        assert (text, version) == ("Gold and red: kind.", digest("Gold and red: {tone}."))
        assert scope == {"thread": None, "labels": gold | red}
        text, [(_, _, scope)] = await said(engine, labels=gold | red, thread="ann")
        assert text == "Ann: kind." and scope["thread"].startswith("ses_")
        assert (await said(engine, labels={"tier": "tin"}, thread="ann"))[0] == "Tin Ann: kind."
        assert (await said(engine, labels={"tier": "tin"}, thread="bob"))[0] == "All: kind."
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        known = await engine.prompt_overrides("tone")
        assert [one.template for one in known] == [template for _, template in reversed(steps)]
        assert {(one.set_by, one.set_at > 0) for one in known} == {("user:ann", True)}
        assert await engine.prompt_overrides("nothing") == []
        assert (await said(engine, thread="ann"))[0] == "Ann: kind."
        await engine.override_prompt("tone", "Be {mood}.", version="v2")
        with pytest.raises(RunFailed) as failed:
            await said(engine)
        assert "the prompt 'tone' (version v2) needs 'mood', which is not given" in str(failed.value)


async def test_a_hook_renders_a_prompt_as_it_is_then() -> None:
    model = ScriptedModel(["Done."])
    agent = Agent(model, prompts=[Prompt("other", "Hm.", version="v7")])

    @agent.on(SystemRendered)
    def render(point: SystemRendered, context: RunContext[Any]) -> None:
        point.system = context.render("other")
        with pytest.raises(ValueError, match=r"the agent has no prompt 'othr'\. Did you mean 'other'"):
            context.render("othr")

    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(agent, "Go.")
        await run.result()
        assert await rendered(run) == [("other", "v7", {"thread": None, "labels": {}})]
    assert model.requests[0].system == "Hm."


def test_a_prompt_that_is_none_is_refused() -> None:
    for id, template, words in [
        ("", "x", "the id of a prompt must have 1 to 128 characters, not ''"),
        ("a", "", "the template of the prompt 'a' must have 1 to 100,000 characters"),
        ("a", "{", "the prompt 'a' is not a template: "),
        ("a", "{x.y}", "the prompt 'a' may have names in it, such as {name}, not {x.y}"),
        ("a", "{}", "the prompt 'a' may have names in it, such as {name}, not {}"),
    ]:
        with pytest.raises(ValueError) as refused:
            Prompt(id, template)
        assert str(refused.value).startswith(words)
    with pytest.raises(ValueError, match="two prompts of an agent have the same id"):
        Agent("m", prompts=[TONE, TONE])
    wrong: Any = [("tone", "x")]
    with pytest.raises(TypeError, match="prompts must be a list of Prompts"):
        Agent("m", prompts=wrong)


async def test_override_that_makes_no_sense_is_refused_and_changes_nothing() -> None:
    async with Engine() as engine:
        refused: list[tuple[dict[str, Any], str]] = [
            ({"template": "{0}"}, "may have names in it"),
            ({"template": "x", "labels": {"a": 1}}, "labels= takes up to 16 strings by name"),
            ({"template": "x", "labels": {str(n): "x" for n in range(17)}}, "labels= takes up to 16 strings by name"),
        ]
        for options, words in refused:
            with pytest.raises(InvalidRequest, match=words):
                await engine.override_prompt("tone", **options)
        assert await engine.prompt_overrides() == []
