"""The catalog of an agent's skills for its model: names and descriptions, in a stable order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weftline import prompts
from weftline.agent.skills.format import MAX_DESCRIPTION_CHARS, Skill


class Catalog:
    """The skills that can be used, by name."""

    def __init__(self, skills: Iterable[Skill] = ()) -> None:
        self._skills = {skill.name: skill for skill in sorted(skills, key=lambda skill: skill.name)}
        self.names = tuple(self._skills)
        """The valid values of the name argument of skills_use."""
        self.text = prompts.skills.catalog([(skill.name, one_line(skill.description)) for skill in self])
        """The catalog for the system prompt; empty if there are no skills."""

    def __iter__(self) -> Iterator[Skill]:
        return iter(self._skills.values())

    def __len__(self) -> int:
        return len(self._skills)

    def get(self, name: str) -> Skill | None:
        return self._skills.get(name)


def one_line(description: str) -> str:
    """Returns a description as one line, without control characters and within the maximum length of the format."""
    words = "".join(char if char.isprintable() or char.isspace() else "\ufffd" for char in description)
    line = " ".join(words.split())
    return line if len(line) <= MAX_DESCRIPTION_CHARS else line[: MAX_DESCRIPTION_CHARS - 1] + "…"
