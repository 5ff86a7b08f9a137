"""An agent that works on a project: its tools, and what they say."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from weftline import Agent, files, shell
from weftline.hooks import ToolGate
from weftline.testing import ScriptedModel, calls
from weftline.tools import todo
from weftline.tools.builtin.editing import inject_edit_outcomes, parse_edit_outcomes


def coder(project: Path) -> Agent:
    return Agent(
        "openai:gpt-5",
        instructions="You work on the project in the current directory.",
        tools=[files(project, require_read_before_edit=True), shell(project, timeout_s=60), todo()],
    )


def reviewer(project: Path) -> Agent:
    return Agent("openai:gpt-5", tools=[files(project, write=False)])


def decide(gate: ToolGate) -> None:
    """A person saw the two edits of a call, and allowed only the first."""
    if gate.tool == "multi_edit" and not gate.issues:
        gate.args = inject_edit_outcomes(gate.args, ["approved", "denied"])


async def main(project: Path) -> None:
    (project / "hello.py").write_text("print('hello')\nprint('world')\n")
    edits = [{"old_string": "hello", "new_string": "hey"}, {"old_string": "world", "new_string": "moon"}]
    model = ScriptedModel(
        [
            calls("grep", pattern=r"print\(", glob="*.py"),
            calls("read_file", path="hello.py"),
            calls("read_file", path="hello.py"),
            calls("multi_edit", path="hello.py", edits=edits),
            calls("shell", command="cat hello.py; exit 3"),
            calls("todo", items=[{"text": "say hey", "status": "done"}, {"text": "say goodbye"}]),
            calls("read_file", path="../secret"),
            "Done.",
        ]
    )
    agent = coder(project)
    agent.on(ToolGate)(decide)
    with agent.override(model=model):
        result = await agent.run("Be friendlier.")
    for call in result.calls:
        print(f"{call.name}: {call.result}")
    print(parse_edit_outcomes(str(result.calls[3].result)))
    assert (project / "hello.py").read_text() == "print('hey')\nprint('world')\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
