"""Files that results of tools bring along or refer to: kept below /attachments, and listed on the message."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from typing import Any

import aiohttp
import pytest

from server.kit import Api
from weftline.testing import ServerProcess

from .folders import write
from .test_serving import call, joined, said, thread, turns

SCRIPTS = {
    "fast": turns(
        call("chart", text="one"),
        call("chart", text="two"),
        call("chart", text="one"),
        call("refer", path="/attachments/chart.png"),
        call("refer", path="/attachments/none.png"),
        call("named", file="../up.png"),
        "done",
    ),
}
FILES = {
    "scripts.json": json.dumps(SCRIPTS),
    "agents/models/fast.py": 'model = define_model(name="fast", provider="test", model="fast")\n',
    "agents/prompts/fast.py": (
        'prompt = define_prompt(name="fast", model="fast", tool_description="x", prompt="Be kind.",'
        ' tools=["chart", "refer", "named"])\n'
    ),
    "agents/agents/fast.py": 'agent = define_agent(name="fast", side_a=SideConfig(prompt="fast"))\n',
    "agents/tools/chart.py": """
@define_tool(effect="idempotent")
async def chart(state: ThreadState, text: str) -> ToolResult:
    '''Draws.'''
    new = ToolAttachment(name="chart.png", data=text.encode(), mime_type="image/png")
    return ToolResult(result="drawn", attachments=(new,))
""",
    "agents/tools/refer.py": """
@define_tool(effect="read")
def refer(state: SyncThreadState, path: str) -> ToolResult:
    '''Refers to a file.'''
    return ToolResult(result="see there", attachments=(path,))
""",
    "agents/tools/named.py": """
@define_tool(effect="idempotent")
async def named(state: ThreadState, file: str) -> ToolResult:
    '''Names a file.'''
    return ToolResult(result="named", attachments=(ToolAttachment(name=file, data=b"x"),))
""",
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("attaching")
    with ServerProcess(folder, arguments=(str(write(folder / "desk", FILES)),)) as running:
        yield running


@pytest.fixture
async def api(serving: ServerProcess) -> AsyncGenerator[Api]:
    async with aiohttp.ClientSession() as http:
        yield joined(serving, http, "acme")


def named(number: str = "") -> dict[str, Any]:
    return {"path": f"/attachments/chart{number}.png", "name": "chart.png", "mimeType": "image/png"}


@pytest.mark.requirement("thread.tool.attachments")
async def test_attachments_of_results_are_files_that_their_messages_list(api: Api) -> None:
    made = await thread(api, "fast")
    assert await said(api, made) == "done"
    results = [one for one in (await api.get(f"threads/{made}/messages")).json["messages"] if one["role"] == "tool"]
    assert [one.get("attachments", []) for one in results] == [[named()], [named("-2")], [named()], [named()], [], []]
    assert [one["tool_status"] for one in results] == ["success"] * 4 + ["error"] * 2
    assert "/attachments/none.png, which does not exist" in results[4]["content"]
    assert "name: must be the name of a file" in results[5]["content"]
    assert all("attachments" not in one.get("metadata", {}) for one in results)
    entries = (await api.get(f"threads/{made}/fs/attachments")).json["entries"]
    assert [(one["name"], one["size"]) for one in entries] == [("chart-2.png", 3), ("chart.png", 3)]
    assert (await api.get(f"threads/{made}/fs/attachments/chart-2.png")).body == b"two"
    assert [one["name"] for one in (await api.get(f"threads/{made}/fs")).json["entries"]] == ["attachments"]
