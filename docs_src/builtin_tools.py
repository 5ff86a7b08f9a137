"""The built-in tools, called as a run calls them."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import weftline
from weftline.messages import joined_text
from weftline.tools.base import Tool
from weftline.tools.builtin.edit_outcomes import inject_edit_outcomes, parse_edit_outcomes
from weftline.tools.builtin.files import files
from weftline.tools.builtin.shell import shell
from weftline.tools.builtin.todo import todo


def toolbox(project: Path) -> Sequence[Tool]:
    return [
        *files(project, require_read_before_edit=True).tools,
        *shell(project, timeout_s=60, max_output_bytes=8_000).tools,
        todo(),
    ]


def decided(args: dict[str, Any]) -> dict[str, object]:
    """A person saw the two edits of a call, and allowed only the first."""
    return inject_edit_outcomes(args, ["approved", "denied"])


async def main(project: Path) -> None:
    tools = {tool.spec.name: tool for tool in toolbox(project)}
    state: dict[str, Any] = {}

    async def call(name: str, args: dict[str, Any] | dict[str, object]) -> str:
        final = await tools[name].prepare(json.dumps(args))
        context = weftline.ToolContext[object]("run_1", "0.0", "key_1", name, "default", state=state)
        text = joined_text((await tools[name].invoke(final, context)).parts)
        print(f"{name}: {text}")
        return text

    await call("write_file", {"path": "src/hello.py", "content": "print('hello')\nprint('world')\n"})
    await call("grep", {"pattern": r"print\(", "glob": "*.py"})
    await call("read_file", {"path": "src/hello.py"})
    await call("read_file", {"path": "src/hello.py"})
    await call("edit", {"path": "src/hello.py", "old_string": "1\tprint('hello')", "new_string": "1\tprint('hi')"})
    edits = [{"old_string": "hi", "new_string": "hey"}, {"old_string": "world", "new_string": "moon"}]
    told = await call("multi_edit", decided({"path": "src/hello.py", "edits": edits}))
    print(parse_edit_outcomes(told))
    await call("shell", {"command": "cat src/hello.py; exit 3"})
    await call("todo", {"items": [{"text": "say hello", "status": "done"}, {"text": "say goodbye"}]})
    refused = await call("read_file", {"path": "../secret"})
    assert "outside the working directory" in refused


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
