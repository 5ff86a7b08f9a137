"""The tools in a run: what they remember is in its log, and what they started ends with it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from runtime.kit import MoodyStore, ended, engine_on, plan, until
from weftline.messages import ToolResults
from weftline.plan import ServerRef
from weftline.store.memory import MemoryDisk
from weftline.tools.builtin.files import files
from weftline.tools.builtin.shell import shell


def calls(name: str, **args: object) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "args": args}]}


def is_gone(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_run_remembers_what_it_has_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n")
    turns = [
        calls("edit", path="f", old_string="one", new_string="two"),
        calls("read_file", path="f"),
        calls("read_file", path="f"),
        calls("edit", path="f", old_string="one", new_string="two"),
        calls("read_file", path="f"),
        {"text": "done"},
    ]
    tools = {tool.spec.name: tool for tool in files(tmp_path, require_read_before_edit=True).tools}
    it, model = engine_on(MoodyStore(MemoryDisk()), {"work": {"turns": turns}}, tools=tools)
    async with it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("work", ServerRef("read_file"), ServerRef("edit")))
        assert (await ended(it, run_id, space)).status == "succeeded"
    answers = [message for message in model.requests[-1].messages if isinstance(message, ToolResults)]
    assert [result.text for answer in answers for result in answer.results] == [
        "f was not changed: read it with read_file before you edit it.",
        "1\tone",
        "[f has not changed since you last read lines 1 to 1 of it: they are in an earlier result of read_file.]",
        "Edited f: 1 replacement.",
        "1\ttwo",
    ]


@pytest.mark.requirement("tool.context.abort")
async def test_cancelling_a_run_ends_the_command_of_its_tool(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    held = calls("shell", command="setsid sleep 600 & echo $! > pid; echo > ready; sleep 600")
    shells = shell(tmp_path)
    tools = {tool.spec.name: tool for tool in shells.tools}
    it, _ = engine_on(MoodyStore(MemoryDisk()), {"work": {"turns": [held, {"text": "done"}]}}, tools=tools)
    async with it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("work", ServerRef("shell")))
        await asyncio.to_thread((tmp_path / "ready").read_text)
        await it.cancel(await it.locate(run_id, workspace=space))
        assert (await ended(it, run_id, space)).status == "cancelled"
        await until(lambda: is_gone((tmp_path / "pid").read_text()))
