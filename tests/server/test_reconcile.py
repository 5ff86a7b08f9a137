"""What a tool's `reconcile` answers after a kill, right or wrong, is a result or a doubt: it never fails the run."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from weftline.testing import ServerProcess

from .kit import TIMEOUT_S, Api, of_type

TOOLS = """
import asyncio, os
import weftline
from weftline.tools import Happened, ToolOutput, Unknown, WillNotHappen

class Odd:
    def __iter__(self):
        raise RuntimeError("not this one")

ANSWERS = {
    "text": lambda: Happened("it is done"),
    "data": lambda: Happened({"boxes": [1, 2]}),
    "output": lambda: Happened(ToolOutput.of("no room", is_error=True)),
    "misfit": lambda: Happened(ToolOutput("not parts")),
    "bytes": lambda: Happened(b"raw"),
    "odd": lambda: Happened(Odd()),
    "half": lambda: Happened("\\ud800"),
    "again": lambda: WillNotHappen(),
    "doubt": lambda: Unknown(),
    "nothing": lambda: None,
    "word": lambda: "perhaps",
    "kind": lambda: WillNotHappen,
    "unhashable": lambda: [],
}
begun = set()

def made(name):
    async def hang(context: weftline.ToolContext) -> str:
        if context.attempt > 1:
            return "done now"
        begun.add(name)
        if len(begun) == len(ANSWERS):
            open(os.environ["BEGUN"], "w").close()
        await asyncio.Event().wait()
        return ""
    return weftline.tool(name=name, reconcile=lambda: ANSWERS[name](), concurrent=True)(hang)

globals().update({name: made(name) for name in ANSWERS})
"""
TOLD = {
    "text": (True, "it is done"),
    "data": (True, '{"boxes":[1,2]}'),
    "output": (False, "no room"),
    "again": (True, "done now"),
    "half": (True, "\ufffd"),
}
WORDS = {
    **dict.fromkeys(("misfit", "bytes"), "its result cannot be shown"),
    **dict.fromkeys(("odd", "doubt", "nothing", "word", "kind", "unhashable"), "not known whether it took effect"),
}
NAMES = TOLD.keys() | WORDS.keys()
CALLS: list[dict[str, Any]] = [{"name": name, "args": {}} for name in sorted(NAMES)]
SCRIPTS: dict[str, Any] = {"all": {"turns": [{"tool_calls": CALLS}, {"text": "{{all_tool_results}}"}]}}


@pytest.mark.requirement("run.effect.reconcile")
async def test_reconciled_call_gets_one_result(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    all_begun = asyncio.create_task(asyncio.to_thread(begun.read_bytes))  # waits for the tool that writes
    with ServerProcess(tmp_path, scripts=SCRIPTS, tools=TOOLS, env={"BEGUN": str(begun)}) as server:
        api = Api(http, server.url, "acme", server.create_key())
        run = await api.start("all", tools=[{"kind": "mantyx_plugin", "name": name} for name in NAMES])
        async with asyncio.timeout(TIMEOUT_S):
            await all_begun
        server.kill()
        server.start()
        frames = await api.events(run)
    assert frames[-1].type == "result", frames[-1]
    results = {frame["name"]: frame for frame in of_type(frames, "tool_result")}
    assert len(of_type(frames, "tool_result")) == len(NAMES)
    assert {name: (results[name]["ok"], results[name]["result"]) for name in TOLD} == TOLD
    for name in NAMES - TOLD.keys():
        assert not results[name]["ok"] and WORDS[name] in results[name]["result"]
