"""A skill on disk and one in code: what the model is told, and what happens when it takes one up."""

from __future__ import annotations

import asyncio
from pathlib import Path

from weftline import Skill, ToolContext, skills
from weftline.messages import joined_text

SKILL = """---
name: release-notes
description: Writes release notes from commits. Use when somebody asks what has changed.
allowed-tools: read_file Bash(git log:*)
---

# Release notes

The last tag is !`echo v1.4`. Group the commits since then by what they change for a user, then run
`scripts/check.py` on the text.
"""
CHECK = "import sys\nprint('no line is too long:', all(len(line) < 100 for line in sys.argv[1:]))\n"

house_style = Skill(
    name="house-style",
    description="How we write. Use for every text that a customer reads.",
    body="Short sentences. No exclamation marks.",
)


def write_skill(place: Path) -> None:
    (place / "release-notes/scripts").mkdir(parents=True, exist_ok=True)
    (place / "release-notes/SKILL.md").write_text(SKILL)
    (place / "release-notes/scripts/check.py").write_text(CHECK)


async def main() -> None:
    write_skill(Path("skills"))
    found = skills(["./skills", house_style])
    tools = {tool.spec.name: tool for tool in await found.open()}
    print(found.instructions)

    # What the runtime does when a model calls the tools.
    context: ToolContext = ToolContext("run_1", "0.0", "key", "skills_use", "default")
    taken_up = await tools["skills_use"].invoke(b'{"name":"release-notes"}', context)
    print(joined_text(taken_up.parts))
    ran = await tools["skills_run_script"].invoke(
        b'{"name":"release-notes","script":"scripts/check.py","args":["- Faster."]}', context
    )
    print(joined_text(ran.parts))


if __name__ == "__main__":
    asyncio.run(main())
