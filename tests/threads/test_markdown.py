"""Agents, instructions, skills and schedules in Markdown."""

from __future__ import annotations

from pathlib import Path

import pytest

from weftline.threads import ScheduleDefinition, check

from .folders import FIND, SMALL, read, said

HELPER = "---\ndescription: Answers: what others do not.\ntools: find_order, fetch\n---\n\nYou answer briefly.\n"
SKILL = "---\nname: refunds\ndescription: How refunds are made.\n---\nAsk first.\n"
MORNING = "---\ncron: 0 8 * * 1-5\ntimezone: Europe/Oslo\n---\nSum up.\n"


def test_folder_with_one_markdown_agent_is_a_project(tmp_path: Path) -> None:
    project = read(tmp_path, {"agents/helper.md": "You answer briefly.\n"})
    report = check(project)
    assert (report.problems, report.warnings) == ((), ())
    agent, prompt = project.registry.agent("helper"), project.registry.prompt("helper")
    assert (agent.type, agent.side_a.prompt) == ("ai_human", "helper")
    assert (prompt.prompt, prompt.model, prompt.tools) == ("You answer briefly.", "", ())


def test_frontmatter_says_model_tools_and_description(tmp_path: Path) -> None:
    helper = HELPER.replace("tools:", "model: fast\ncolor: blue\ntools:")
    project = read(tmp_path, {**SMALL, "agents/helper.md": helper, "agents/tools/find_order.py": FIND})
    assert check(project).problems == ()
    prompt = project.registry.prompt("helper")
    assert (prompt.model, prompt.tools) == ("fast", ("find_order", "fetch"))
    assert project.registry.agent("helper").description == "Answers: what others do not."


def test_every_shape_is_found(tmp_path: Path) -> None:
    files = {
        "agents/helper.md": "You answer briefly.\n",
        "AGENTS.md": "# House rules\nNever promise anything.\n",
        "skills/refunds/SKILL.md": SKILL,
        "schedules/morning.md": MORNING,
        "evals/polite.py": "1 / 0\n",
    }
    project = read(tmp_path, files)
    assert check(project).problems == ()
    registry = project.registry
    assert registry.instructions == "# House rules\nNever promise anything."
    assert [one.name for one in registry.skills] == ["refunds"]
    assert registry.schedules == {
        "morning": ScheduleDefinition(
            name="morning", agent="helper", cron="0 8 * * 1-5", timezone="Europe/Oslo", prompt="Sum up."
        )
    }
    assert [one.name for one in project.evals] == ["polite.py"]


MISTAKES = [
    (
        {"agents/helper.md": "---\nmodel: fast\n---\n"},
        'agents/helper.md:1: agent "helper": prompt: is missing: write it below the frontmatter',
    ),
    (
        {"agents/helper.md": HELPER.replace("find_order, fetch", "\n  - fetch\n  - fetsh")},
        'agents/helper.md:5: prompt "helper": tools[1]: there is no tool, prompt or agent "fetsh". Did you mean'
        ' "fetch"?',
    ),
    (
        {"agents/helper.md": "---\nmodel: fsat\n---\nBe kind.\n"},
        'agents/helper.md:2: prompt "helper": model: there is no model "fsat". Did you mean "fast"?',
    ),
    (
        {"agents/helper.md": "---\nmodel: [a]\n---\nBe kind.\n"},
        'agents/helper.md:2: agent "helper": model: must be text',
    ),
    (
        {"agents/helper.md": "---\nmodel: fast\nBe kind.\n"},
        'agents/helper.md:1: agent "helper": frontmatter: its frontmatter has no closing `---` line',
    ),
    (
        {"agents/tone.md": "Be kind.\n"},
        'agents/tone.md:1: agent "tone": is defined twice: agents/agents/tone.py:2 defines it too',
    ),
    (
        {"schedules/x.md": "---\nagent: tune\ncron: 0 8 * * 1-5\n---\nSum up.\n"},
        'schedules/x.md:2: schedule "x": agent: there is no agent "tune". Did you mean "tone"?',
    ),
    (
        {"schedules/x.md": MORNING, "schedules/y.md": MORNING.replace("cron", "name: x\ncron")},
        'schedules/y.md:1: schedule "x": is defined twice: schedules/x.md:1 defines it too',
    ),
    ({"schedules/x.md": "Sum up.\n"}, 'schedules/x.md:1: schedule "x": cron: is missing, such as `cron: 0 8 * * 1-5`'),
]


@pytest.mark.parametrize(("files", "words"), MISTAKES, ids=[words[:60] for _, words in MISTAKES])
def test_mistake_in_markdown_is_told_with_its_line(files: dict[str, str], words: str, tmp_path: Path) -> None:
    assert words in said(tmp_path, check(read(tmp_path, {**SMALL, **files})).problems)


def test_wrong_cron_expression_is_told(tmp_path: Path) -> None:
    project = read(tmp_path, {**SMALL, "schedules/x.md": "---\ncron: 0 25 * * *\n---\nSum up.\n"})
    (problem,) = said(tmp_path, project.problems)
    assert problem == "schedules/x.md:2: schedule \"x\": cron: hour: '25' is not a number from 0 to 23."


def test_field_that_is_misspelled_is_warned_of(tmp_path: Path) -> None:
    project = read(tmp_path, {"agents/helper.md": "---\ndescripton: x\ncolor: red\n---\nBe kind.\n"})
    assert said(tmp_path, project.warnings) == [
        "agents/helper.md:2: agent \"helper\": descripton: is not a field of ours. Did you mean 'description'?"
    ]


def test_skill_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    project = read(tmp_path, {**SMALL, "skills/refunds/SKILL.md": "no frontmatter\n"})
    (problem,) = said(tmp_path, project.problems)
    assert problem.startswith("skills/refunds") and "frontmatter" in problem
