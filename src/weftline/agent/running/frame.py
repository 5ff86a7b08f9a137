"""The needs of a run's code besides hooks and deps: behavior, tool names, withheld tools and skills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weftline.agent.behavior import DEFAULTS, Behavior, other_budgets
from weftline.agent.prompting import NO_PROMPTS, RunPrompts
from weftline.agent.running.aliases import Aliases
from weftline.agent.running.disclosure import Disclosure
from weftline.agent.running.gates import BudgetGate, DedupGate, DisclosureGate, FrameworkGate, SkillGate
from weftline.agent.skills.allowed import ToolNames
from weftline.agent.skills.toolset import Skills
from weftline.kernel import bodies
from weftline.kernel.notes import PROMPT_NOTE, RUN_NOTE
from weftline.runtime.notes import MAX_NOTES, run_note


class Notes:
    """The notes of one run that are not stored yet."""

    def __init__(self, prompts: RunPrompts | None = None) -> None:
        self._prompts = prompts or NO_PROMPTS
        self.turn = 0
        self._left = MAX_NOTES
        self._kept: dict[str, list[bytes]] = {}

    def begin_turn(self, turn: int) -> None:
        if turn != self.turn:
            self.turn, self._left = turn, MAX_NOTES

    def note(self, text: str, labels: Mapping[str, str] | None = None) -> None:
        """Keeps a note. Raises `ValueError` for an invalid one. Notes beyond `MAX_NOTES` per turn are dropped."""
        self._keep(RUN_NOTE, run_note(text, labels, turn=self.turn))

    def render(self, id: str, /, **data: object) -> str:
        """Renders a prompt, and keeps a note of it. Raises `ValueError` if it cannot be rendered."""
        text, note = self._prompts.render(id, data)
        self._keep(PROMPT_NOTE, bodies.encode(note))
        return text

    def _keep(self, kind: str, encoded: bytes) -> None:
        if self._left:
            self._left -= 1
            self._kept.setdefault(kind, []).append(encoded)

    def pop(self) -> tuple[tuple[str, list[bytes]], ...]:
        """Removes and returns the notes to store now, by kind."""
        if not self._kept:
            return ()
        kept, self._kept = self._kept, {}
        return tuple(kept.items())


class Frame:
    """The frame of one run."""

    def __init__(
        self,
        *,
        behavior: Behavior = DEFAULTS,
        aliases: Aliases | None = None,
        disclosure: Disclosure | None = None,
        skills: Sequence[Skills] = (),
        tools: Sequence[str] = (),
    ) -> None:
        self.behavior = behavior
        self.aliases = aliases or Aliases()
        self.disclosure = disclosure or Disclosure()
        self.skills = tuple(skills)
        self.budgets = BudgetGate(other_budgets(behavior.tool_budgets), display_names=self.aliases.by_name)
        self.dedup = DedupGate(behavior.dedup_tools or {})
        names = self.names = ToolNames(tools, aliases=self.aliases.by_name)
        gates: list[tuple[object, FrameworkGate]] = [
            (self.skills, SkillGate(self.skills, names)),
            (other_budgets(behavior.tool_budgets), self.budgets),
            (behavior.dedup_tools, self.dedup),
            (self.disclosure.withheld, DisclosureGate(self.disclosure)),
        ]
        self.gates: tuple[FrameworkGate, ...] = tuple([gate for needed, gate in gates if needed])
        """The gates that can have an effect, in the order in which they are asked."""
