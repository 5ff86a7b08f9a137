"""The needs of a run's code besides hooks and deps: behavior, tool names, withheld tools and skills."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.agent.behavior import DEFAULTS, Behavior, other_budgets
from weftline.agent.running.aliases import Aliases
from weftline.agent.running.disclosure import Disclosure
from weftline.agent.running.gates import BudgetGate, DedupGate, DisclosureGate, FrameworkGate, SkillGate
from weftline.agent.skills.allowed import ToolNames
from weftline.agent.skills.toolset import Skills


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
