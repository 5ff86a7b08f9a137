"""Everything that is wrong with a skill, at once."""

from __future__ import annotations

from pathlib import Path

from weftline.agent.skills.format import validate


def main() -> None:
    Path("pdf").mkdir(exist_ok=True)
    Path("pdf/SKILL.md").write_text("---\nname: PDF--forms\nversion: 2\n---\n\nFill the form.\n")
    for fault in validate("pdf"):
        print(f"{fault.path}: {fault.message}")


if __name__ == "__main__":
    main()
