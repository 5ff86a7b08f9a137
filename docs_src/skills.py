"""A skill on disk and one in code: what the model is told, and what happens when it takes one up."""

from __future__ import annotations

import asyncio
from pathlib import Path

from weftline import Agent, skills
from weftline.testing import ScriptedModel, calls
from weftline.tools import Skill

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
    # A script in place of a model, which would choose for itself.
    model = ScriptedModel(
        [
            calls("skills_use", name="release-notes"),
            calls("skills_run_script", name="release-notes", script="scripts/check.py", args=["- Faster."]),
            "- Faster.",
        ]
    )
    found = skills(["./skills", house_style])
    agent = Agent(model, tools=[found])
    result = await agent.run("What has changed?")
    print(found.instructions)
    for call in result.calls:
        print(call.name, call.result, sep="\n")
    print(result.text)


if __name__ == "__main__":
    asyncio.run(main())
