"""Skills as an agent's runs have them: in its instructions, its gates and its hooks, and after a crash."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, RunContext, skills, tool
from weftline.agent.skills.toolset import UnknownSkill
from weftline.hooks import SkillsActivate, SkillsCatalog, SkillsDeactivate, SkillsResolve
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls
from weftline.tools import Skill

from .house import write_skill

TONE = Skill(name="tone", description="How to write.", body="Briefly.")
STRICT = Skill(name="strict", description="Only looks.", body="Look.", allowed_tools=("look", "Bash(git:*)"))


@tool(effect="read")
def look() -> str:
    """Looks."""
    return "seen"


@tool
def pay() -> str:
    """Pays."""
    return "paid"


@tool
def shell(command: str) -> str:
    """Runs a command."""
    return f"ran {command}"


def agent_of(*turns: Any, tools: list[Any], **options: Any) -> tuple[Agent[Any, Any], ScriptedModel]:
    model = ScriptedModel([*turns, "Done."])
    return Agent(model, tools=tools, limits=Limits(loop_soft=0), **options), model


@pytest.mark.requirement("skill.catalog.prompt", "skill.catalog.tools")
async def test_the_catalog_stands_in_the_instructions() -> None:
    agent, model = agent_of(tools=[skills([TONE, STRICT])], instructions="Be brief.")
    await agent.run("Go.")
    await agent.run("Go.")
    system = model.requests[0].system or ""
    assert system.startswith("Be brief.\n\n") and system.index("<name>strict") < system.index("<name>tone")
    assert "Briefly." not in system and model.requests[1].system == system

    def instructions(context: RunContext) -> str:
        return f"I am {context.run.agent}."

    dynamic, other = agent_of(tools=[skills(TONE)], instructions=instructions)
    await dynamic.run("Go.")
    assert (other.requests[0].system or "").startswith("I am None.\n\n")
    bare, third = agent_of(tools=[skills([], project="/nowhere/at/all")], instructions="Be brief.")
    await bare.run("Go.")
    assert third.requests[0].system == "Be brief." and list(third.requests[0].tools) == []


@pytest.mark.requirement("skill.catalog.hooks")
async def test_hooks_see_the_catalog_once_and_may_change_it() -> None:
    agent, model = agent_of(tools=[skills([TONE, STRICT])])
    seen: list[object] = []
    agent.on(SkillsResolve)(lambda at: seen.append(sorted(one.name for one in at.skills)))

    @agent.on(SkillsCatalog)
    def without_strict(point: SkillsCatalog) -> None:
        seen.append("catalog")
        point.catalog = [one for one in point.catalog if one.name != "strict"]

    await agent.run("Go.")
    agent.on(SkillsResolve)(lambda at: seen.append("late"))
    await agent.run("Go.")
    assert seen == [["strict", "tone"], "catalog"]
    assert "strict" not in (model.requests[0].system or "")


@pytest.mark.requirement("skill.active.via", "skill.active.ends")
async def test_hooks_hear_of_what_becomes_active_and_of_its_end() -> None:
    agent, _ = agent_of(calls("skills_use", name="tone"), calls("skills_use", name="tone"), tools=[skills(TONE)])
    seen: list[tuple[str, str]] = []
    agent.on(SkillsActivate)(lambda at: seen.append((at.skill.name, at.via)))
    agent.on(SkillsDeactivate)(lambda at: seen.append((at.skill.name, at.reason)))
    first = await agent.run("Go.")
    assert seen == [("tone", "model"), ("tone", "run_end")]
    seen.clear()
    again, _ = agent_of(tools=[skills(TONE)])
    again.on(SkillsActivate)(lambda at: seen.append((at.skill.name, at.via)))
    again.on(SkillsDeactivate)(lambda at: seen.append((at.skill.name, at.reason)))
    await again.run("And?", messages=first.messages)
    assert seen == [("tone", "resume"), ("tone", "run_end")]


@pytest.mark.requirement("skill.active.explicit", "skill.active.ends", "skill.active.via")
async def test_a_program_activates_a_skill_for_the_next_run() -> None:
    found = skills([TONE, STRICT])
    agent, model = agent_of(tools=[found])
    seen: list[tuple[str, str]] = []
    agent.on(SkillsActivate)(lambda at: seen.append((at.skill.name, at.via)))
    agent.on(SkillsDeactivate)(lambda at: seen.append((at.skill.name, at.reason)))
    await found.activate("tone")
    await found.activate("strict")
    await found.deactivate("strict")
    with pytest.raises(UnknownSkill, match="tone"):
        await found.activate("nope")
    await agent.run("Go.")
    await agent.run("Go.")
    first, second = (request.system or "" for request in model.requests)
    assert "Briefly." in first and "Briefly." not in second
    assert seen == [("tone", "explicit"), ("strict", "explicit"), ("strict", "explicit"), ("tone", "run_end")]


@pytest.mark.requirement("skill.allowed_tools.restrict", "skill.allowed_tools.names", "skill.allowed_tools.patterns")
async def test_the_lists_of_active_skills_restrict_what_may_be_called() -> None:
    turns = [
        calls("Pay"),
        calls("skills_use", name="strict"),
        calls("Pay"),
        calls("look"),
        calls("Bash", command="git status"),
        calls("Bash", command="git status; rm x"),
        calls("skills_use", name="tone"),
    ]
    agent, _ = agent_of(
        *turns, tools=[look, pay, shell, skills([STRICT, TONE])], tool_aliases={"pay": "Pay", "shell": "Bash"}
    )
    result = await agent.run("Go.")
    hows = [call.how for call in result.calls]
    assert hows == ["returned", "returned", "blocked", "returned", "returned", "blocked", "returned"]
    assert result.calls[2].result.startswith("Blocked: pay may not be called")
    free, _ = agent_of(
        calls("skills_use", name="strict"), calls("pay"), tools=[pay, skills(STRICT, allowed_tools="preapprove")]
    )
    assert [call.how for call in (await free.run("Go.")).calls] == ["returned", "returned"]


@pytest.mark.requirement("skill.active.ends")
async def test_skills_end_with_a_run_that_is_cancelled() -> None:
    reached = asyncio.Event()

    @tool(effect="read")
    async def hangs() -> str:
        reached.set()
        await asyncio.Event().wait()
        return ""

    agent, _ = agent_of(calls("skills_use", name="tone"), calls("hangs"), tools=[hangs, skills(TONE)])
    seen: list[str] = []
    agent.on(SkillsDeactivate)(lambda at: seen.append(at.reason))
    async with agent.stream("Go.") as run:
        await reached.wait()
        await run.cancel()
        assert (await run.result()).status == "cancelled"
    assert seen == ["run_end"]


@pytest.mark.requirement("skill.active.explicit", "skill.allowed_tools.restrict")
async def test_skill_activated_by_program_stays_active_after_restart(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills", "pdf", fields="allowed-tools: look", files={"notes.md": "Mind the gap."})
    reached = asyncio.Event()

    @tool(effect="read", name="look")
    async def hangs() -> str:
        reached.set()
        await asyncio.Event().wait()
        return ""

    model = ScriptedModel([calls("look"), calls("skills_read", name="pdf", path="notes.md"), calls("pay"), "Done."])
    models = Catalog()
    models.add(model, name="lab")
    found = skills(tmp_path / "skills")
    agent = Agent("lab:script", name="reader", tools=[found, hangs, pay])
    await found.activate("pdf")
    async with Engine(tmp_path / "data", agents=[agent], models=models, drain_s=0) as engine:
        run = await engine.start(agent, "Go.", key="1")
        await reached.wait()
    later = Agent("lab:script", name="reader", tools=[skills(tmp_path / "skills"), look, pay])
    async with Engine(tmp_path / "data", agents=[later], models=models) as engine:
        result = await engine.attach(run.id, later).result()
    assert [(call.how, call.result) for call in result.calls][:2] == [
        ("returned", "seen"),
        ("returned", "Mind the gap."),
    ]
    assert result.calls[2].how == "blocked"
    assert all("Do it well." in (request.system or "") for request in model.requests)
