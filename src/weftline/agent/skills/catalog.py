"""The skills of an agent as its model is told of them: names and descriptions, in an order that never changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weftline import prompts
from weftline.agent.skills.format import MAX_DESCRIPTION_CHARS, Skill


class Catalog:
    """The skills that can be used, by name."""

    def __init__(self, skills: Iterable[Skill] = ()) -> None:
        self._skills = {skill.name: skill for skill in sorted(skills, key=lambda skill: skill.name)}
        self.names = tuple(self._skills)
        """What the name argument of skills_use may be."""
        self.text = prompts.skills.catalog([(skill.name, one_line(skill.description)) for skill in self])
        """The catalog as the system prompt has it; "" if there is no skill."""

    def __iter__(self) -> Iterator[Skill]:
        return iter(self._skills.values())

    def __len__(self) -> int:
        return len(self._skills)

    def get(self, name: str) -> Skill | None:
        return self._skills.get(name)


def one_line(description: str) -> str:
    """A description on one line, without control characters, and no longer than the format allows."""
    words = "".join(char if char.isprintable() or char.isspace() else "\ufffd" for char in description)
    line = " ".join(words.split())
    return line if len(line) <= MAX_DESCRIPTION_CHARS else line[: MAX_DESCRIPTION_CHARS - 1] + "…"
