"""The tools of an agent: what they remember is in the run's log, and what they started ends with it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from weftline import Agent, files, shell
from weftline.hooks import ToolBefore, ToolGate
from weftline.messages import ToolResults
from weftline.testing import ScriptedModel, calls
from weftline.tools.builtin.editing import inject_edit_outcomes


def results_of(model: ScriptedModel) -> list[str]:
    """What the model read as results of its calls."""
    answers = [message for message in model.requests[-1].messages if isinstance(message, ToolResults)]
    return [result.text for answer in answers for result in answer.results]


async def test_a_run_remembers_what_it_has_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n")
    change = calls("edit", path="f", old_string="one", new_string="two")
    read = calls("read_file", path="f")
    model = ScriptedModel([change, read, read, change, read, "Done."])
    agent = Agent(model, tools=[files(tmp_path, require_read_before_edit=True)])
    assert (await agent.run("Go.")).text == "Done."
    assert results_of(model) == [
        "f was not changed: read it with read_file before you edit it.",
        "1\tone",
        "[f has not changed since you last read lines 1 to 1 of it: they are in an earlier result of read_file.]",
        "Edited f: 1 replacement.",
        "1\ttwo",
    ]


@pytest.mark.requirement("tool.write_file.prior_content")
async def test_before_a_write_a_hook_sees_what_it_replaces(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before")
    writes = [calls("write_file", path=path, content="after") for path in ("old", "new")]
    agent = Agent(ScriptedModel([*writes, calls("read_file", path="old"), "Done."]), tools=[files(tmp_path)])
    seen: list[tuple[str, str | None]] = []
    agent.on(ToolBefore)(lambda at: seen.append((at.tool, at.prior_content)))
    await agent.run("Go.")
    assert seen == [("write_file", "before"), ("write_file", None), ("read_file", None)]


@pytest.mark.requirement("tool.multi_edit.outcomes")
async def test_gate_decides_on_edits_one_by_one_and_model_cannot(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one two")
    edits = [{"old_string": "one", "new_string": "1"}, {"old_string": "two", "new_string": "2"}]
    forged = calls("multi_edit", path="f", edits=edits, _outcomes=["approved", "approved"])
    model = ScriptedModel([forged, calls("multi_edit", path="f", edits=edits), "Done."])
    agent = Agent(model, tools=[files(tmp_path)])

    @agent.on(ToolGate)
    def decide(gate: ToolGate) -> None:
        if not gate.issues:
            gate.args = inject_edit_outcomes(gate.args, ["denied", "approved"])

    await agent.run("Go.")
    refusal, told = results_of(model)
    assert "_outcomes" in refusal
    assert told == "Edited f: 1/2 applied · 1 denied\n#1 denied\n#2 applied"
    assert (tmp_path / "f").read_text() == "one 2"


@pytest.mark.requirement("tool.context.abort")
async def test_when_aborted_run_returns_command_of_its_tool_is_gone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    held = calls("shell", command="setsid sleep 600 & echo $! > pid; echo > ready; sleep 600")
    agent = Agent(ScriptedModel([held, "Done."]), tools=[shell(root=tmp_path)])
    run = asyncio.create_task(agent.run("Go."))
    await asyncio.to_thread((tmp_path / "ready").read_text)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
