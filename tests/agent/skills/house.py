"""Skills on disk, and a run that uses them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UnsetType

from weftline.agent.skills.toolset import SkillActivated, SkillDeactivated, Skills
from weftline.messages import joined_text
from weftline.runtime.agent_code.inside import RunMemory
from weftline.tools.base import Tool, ToolContext, ToolOutput


def write_skill(
    place: Path,
    name: str = "pdf",
    *,
    description: str | None = "Reads PDF files.",
    body: str = "Do it well.",
    fields: str = "",
    files: Mapping[str, str] | None = None,
) -> Path:
    """A directory `place/name` with a SKILL.md; `fields` are further lines of its frontmatter."""
    directory = place / name
    directory.mkdir(parents=True, exist_ok=True)
    lines = ["---", f"name: {name}"]
    if description is not None:
        lines.append(f"description: {description}")
    if fields:
        lines.append(fields)
    (directory / "SKILL.md").write_text("\n".join([*lines, "---", "", body, ""]), encoding="utf-8")
    for path, content in (files or {}).items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
    return directory


class SkillRun:
    """One run with the skills tools, without a model."""

    def __init__(self, skills: Skills, tools: Mapping[str, Tool], *, run_id: str = "run_1") -> None:
        self.skills = skills
        self.tools = tools
        self.run_id = run_id
        self.state: dict[str, Any] = {}
        self.events: list[tuple[str, str, str]] = []
        skills.on_activate.append(self._activated)
        skills.on_deactivate.append(self._deactivated)

    @classmethod
    async def of(cls, skills: Skills) -> SkillRun:
        return cls(skills, {tool.spec.name: tool for tool in await skills.open()})

    async def call(self, tool: str, **args: object) -> ToolOutput:
        subject = self.tools[tool]
        memory = RunMemory(self.state)
        context: ToolContext = ToolContext(self.run_id, "0.0", "key", tool, "default", state=memory)
        output = await subject.invoke(await subject.prepare(json.dumps(args)), context)
        # As the runtime does it: what the call changed goes through the log.
        changes = memory.changes()
        if not isinstance(changes, UnsetType):
            self.state |= msgspec.json.decode(changes, type=dict[str, Any])
        return output

    async def text(self, tool: str, **args: object) -> str:
        output = await self.call(tool, **args)
        assert not output.is_error, joined_text(output.parts)
        return joined_text(output.parts)

    async def error(self, tool: str, **args: object) -> str:
        output = await self.call(tool, **args)
        assert output.is_error, joined_text(output.parts)
        return joined_text(output.parts)

    def _activated(self, event: SkillActivated) -> None:
        self.events.append(("activate", event.skill.name, event.via))

    def _deactivated(self, event: SkillDeactivated) -> None:
        self.events.append(("deactivate", event.skill.name, event.reason))
