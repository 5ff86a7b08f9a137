"""Skills in runs of an agent: what the model is offered, and what is kept from call to call and over a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

from weftline import Agent, Engine, skills, tool
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls
from weftline.tools import Skill

from .house import write_skill


async def test_model_activates_a_skill_reads_its_file_runs_its_script(tmp_path: Path) -> None:
    write_skill(tmp_path, body="Today: !`echo Monday`.", files={"notes.md": "Mind the gap.", "say.sh": 'echo "<$1>"'})
    model = ScriptedModel(
        [
            calls("skills_read", name="pdf", path="notes.md"),
            calls("skills_use", name="pdf"),
            calls("skills_read", name="pdf", path="notes.md"),
            calls("skills_run_script", name="pdf", script="say.sh", args=["a b"]),
            calls("skills_use", name="pdf"),
            calls("skills_use", name="docx"),
            "Done.",
        ]
    )
    result = await Agent(model, tools=[skills(tmp_path)]).run("Go.")
    early, used, read, ran, again, unknown = (str(call.result) for call in result.calls)
    assert "is not active" in early and "Today: Monday." in used and read == "Mind the gap."
    assert ran.startswith("<a b>\n(exit 0, ") and "already active" in again and "docx" not in used
    assert "name" in unknown
    assert [spec.name for spec in model.requests[0].tools] == ["skills_use", "skills_read", "skills_run_script"]
    model.assert_done()


async def test_an_agent_without_skills_has_no_skills_tools(tmp_path: Path) -> None:
    model = ScriptedModel(["Done."])
    await Agent(model, tools=[skills(tmp_path)]).run("Go.")
    assert list(model.requests[0].tools) == []


async def test_a_skill_is_not_active_in_the_next_run() -> None:
    written = Skill(name="tone", description="How to write.", body="Briefly.")
    model = ScriptedModel([calls("skills_use", name="tone"), "Done."])
    agent = Agent(model, tools=[skills(written)])
    for _ in range(2):
        result = await agent.run("Go.")
        assert "Briefly." in str(result.calls[0].result)


async def test_active_skill_stays_active_after_restart(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills", files={"notes.md": "Mind the gap."})
    reached = asyncio.Event()

    @tool(effect="read", name="look")
    async def hangs() -> str:
        reached.set()
        await asyncio.Event().wait()
        return ""

    @tool(effect="read")
    def look() -> str:
        return "seen"

    model = ScriptedModel(
        [calls("skills_use", name="pdf"), calls("look"), calls("skills_read", name="pdf", path="notes.md"), "Done."]
    )
    models = Catalog()
    models.add(model, name="lab")
    where = tmp_path / "skills"
    agent = Agent("lab:script", name="reader", tools=[skills(where), hangs])
    async with Engine(tmp_path / "data", agents=[agent], models=models, drain_s=0) as engine:
        run = await engine.start(agent, "Go.", key="1")
        await reached.wait()
    later = Agent("lab:script", name="reader", tools=[skills(where), look])
    async with Engine(tmp_path / "data", agents=[later], models=models) as engine:
        result = await engine.attach(run.id, later).result()
    assert [str(call.result) for call in result.calls][1:] == ["seen", "Mind the gap."]
