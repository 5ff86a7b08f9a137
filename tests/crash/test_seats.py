"""A process that dies as the speaker of a two-sided run changes: the run goes on with whoever's turn it is."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from commands import new_secret
from server.kit import Api, of_type
from threads.folders import write
from weftline.testing import ServerProcess

POINTS = [
    f"{write}:{side}"
    for write in ("seat.taken", "seat.asked_on", "seat.closing", "seat.forced", "run.stopped")
    for side in ("before", "after")
]
A = {"turns": [{"text": "I think."}, {"text": "I still think."}, {"text": "I have thought."}]}
B: dict[str, Any] = {
    "turns": [
        *([{"text": "unused"}] * 3),
        {"tool_calls": [{"name": "again", "args": {}}]},
        {"text": "Once more."},
        {"tool_calls": [{"name": "halt", "args": {}}]},
    ]
}
FILES = {
    "scripts.json": json.dumps({"a": A, "b": B}),
    "agents/models/a.py": 'model = define_model(name="a", provider="test", model="a")\n',
    "agents/models/b.py": 'model = define_model(name="b", provider="test", model="b")\n',
    "agents/prompts/a.py": 'prompt = define_prompt(name="a", model="a", tool_description="A", prompt="A")\n',
    "agents/prompts/b.py": (
        'prompt = define_prompt(name="b", model="b", tool_description="B", prompt="B", tools=["again", "halt"])\n'
    ),
    "agents/agents/both.py": """
agent = define_agent(
    name="both", type="dual_ai", side_a=SideConfig(prompt="a", stop_on_response=False, max_steps=2),
    side_b=SideConfig(prompt="b"),
)
""",
    "agents/tools/again.py": """
@define_tool(effect="idempotent")
async def again(state: ThreadState) -> str:
    '''Gives the next turn to side B.'''
    state.execution.force_turn("b")
    return "ok"
""",
    "agents/tools/halt.py": """
@define_tool(effect="idempotent")
async def halt(state: ThreadState) -> str:
    '''Stops the run.'''
    state.execution.stop()
    return "ok"
""",
}


@pytest.mark.parametrize("point", POINTS)
async def test_two_sided_run_goes_on_after_kill_at(point: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, arguments=(str(write(tmp_path / "desk", FILES)),)) as server:
        key = new_secret(server.db, "acme", name="test")
        assert server.terminate() == 0
        server.start(env={"WEFTLINE_CRASH": point})
        body, once = {"agentId": "both", "prompt": "Go."}, {"Idempotency-Key": "go"}
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            with suppress(aiohttp.ClientConnectionError):
                await api.post("agent-runs", body, headers=once)
            assert await asyncio.to_thread(server.wait) < 0
            server.start()
            run = (await api.post("agent-runs", body, headers=once)).json["runId"]
            frames = await api.events(run)
    said = [frame["text"] for frame in of_type(frames, "assistant_message") if frame["text"]]
    assert said == ["I think.", "I still think.", "I have thought.", "Once more."]
    assert [frame["name"] for frame in of_type(frames, "tool_result")] == ["again", "halt"]
    assert [frame.type for frame in frames if frame.type in ("result", "error", "cancelled")] == ["result"]
