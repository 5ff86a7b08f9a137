"""The needs of a run's code besides hooks and deps: behavior, tool names, withheld tools and skills.

The framework's own gates are here too, which come after those of the agent and the run.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias, cast

from msgspec import Struct

from weftline import prompts
from weftline.agent.agent_tools import Aliases
from weftline.agent.behavior import DEFAULTS, Behavior, Exceeded, Hasher, Mode, Ruling, ToolBudget, other_budgets
from weftline.agent.prompting import NO_PROMPTS, RunPrompts
from weftline.agent.running.disclosure import Disclosure
from weftline.agent.skills.allowed import Call, ToolNames
from weftline.agent.skills.toolset import Skills
from weftline.kernel import bodies
from weftline.kernel.entries import Over
from weftline.kernel.notes import PROMPT_NOTE, RUN_NOTE
from weftline.prompts.calls import blocked
from weftline.runtime.agent_code.code import PendingCall
from weftline.runtime.agent_code.inside import MAX_NOTES, run_note
from weftline.text.canonical import canonical_value, digest
from weftline.tools.base import ToolOutput
from weftline.work.outcomes import attempt

_log = logging.getLogger(__name__)
_NOTIFIED = "budget_told:"
_DEDUP = "dedup:"


class Verdict(Struct, frozen=True):
    """The decision of a gate. With `yields`, an exhausted budget takes precedence over it."""

    blocked: str | None = None
    answer: ToolOutput | None = None
    yields: bool = False
    over: Over | None = None
    steer: str = ""

    @property
    def decides(self) -> bool:
        return self.blocked is not None or self.answer is not None


NOTHING = Verdict()


class SkillGate:
    """While an active skill lists tools, no others may be called."""

    def __init__(self, skills: Sequence[Skills], names: ToolNames) -> None:
        self._skills = tuple(skills)
        self._names = names

    def ask(self, call: PendingCall, args: Mapping[str, Any], memory: MutableMapping[str, Any]) -> Verdict:
        for one in self._skills:
            why = one.refusal(Call(call.name, args), state=memory, names=self._names)
            if why:
                return Verdict(blocked=why.removeprefix(blocked("")))
        return NOTHING


class BudgetGate:
    """Budgets that steer, or that a function decides on."""

    def __init__(self, budgets: Mapping[str, ToolBudget], *, display_names: Mapping[str, str]) -> None:
        """`display_names` has the names by which the model knows tools, where they differ."""
        self._budgets = budgets
        self._display_names = display_names
        self._turn = -1
        self._before: Counter[str] = Counter()
        self._admitted: Counter[str] = Counter()
        self._notified: set[str] = set()

    def ask(self, call: PendingCall, args: Mapping[str, Any], memory: MutableMapping[str, Any]) -> Verdict:
        budget = self._budgets.get(call.name)
        if budget is None:
            return NOTHING
        used = self._used(call)
        if used < budget.max:
            return NOTHING
        over = Over(budget.max, used + 1)
        ruling = _ruling(budget, Exceeded(call.name, budget.max, used + 1))
        name = self._display_names.get(call.name, call.name)
        if ruling.mode == "block":
            return Verdict(blocked=ruling.message or prompts.behavior.over_budget(name, budget.max), over=over)
        if call.name in self._notified or memory.get(_NOTIFIED + call.name):
            return Verdict(over=over)
        self._notified.add(call.name)
        memory[_NOTIFIED + call.name] = True
        return Verdict(over=over, steer=ruling.message or prompts.behavior.steer_budget(name, budget.max))

    def admit(self, call: PendingCall) -> None:
        """Counts a call that passes, although it has no result yet."""
        if call.name in self._budgets:
            self._used(call)
            self._admitted[call.name] += 1

    def _used(self, call: PendingCall) -> int:
        """Returns how often the tool was used, including concurrent calls that were admitted but have no result yet."""
        under_way = call.under_way()
        now = call.counts.get(call.name, 0) + under_way.get(call.name, 0)
        if call.turn != self._turn:
            self._turn, self._admitted = call.turn, Counter()
            self._before = Counter(call.counts) + Counter(under_way)
        return max(now, self._before[call.name] + self._admitted[call.name])


def _ruling(budget: ToolBudget, exceeded: Exceeded) -> Ruling:
    decide = budget.on_exceed
    if isinstance(decide, str):
        return Ruling(cast("Mode", decide))
    ruling = cast(object, decide(exceeded))
    if not isinstance(ruling, Ruling):
        raise TypeError(f"on_exceed of {exceeded.tool!r} returned {ruling!r}, which is not a Ruling")
    return ruling


class DedupGate:
    """Repeats the last result of a tool if the call is the same. Remembers one call per tool."""

    def __init__(self, hashers: Mapping[str, Hasher | None]) -> None:
        self._hashers = hashers

    def ask(self, call: PendingCall, args: Mapping[str, Any], memory: MutableMapping[str, Any]) -> Verdict:
        if call.tool is None or call.problem or call.name not in self._hashers:
            return NOTHING
        last = memory.get(_DEDUP + call.name)
        key = self._key(call.name, args)
        if key is None or not isinstance(last, dict):
            return NOTHING
        remembered = cast("dict[str, object]", last)
        if remembered.get("hash") != key:
            return NOTHING
        result = call.result_of(str(remembered.get("call")))
        if result is None or result.is_error:
            return NOTHING
        return Verdict(answer=ToolOutput(result.parts), yields=True)

    def remember(self, call: PendingCall, args: Mapping[str, Any], memory: MutableMapping[str, Any]) -> None:
        """Remembers a call that succeeded."""
        if call.name not in self._hashers:
            return
        key = self._key(call.name, args)
        if key is not None:
            memory[_DEDUP + call.name] = {"hash": key, "call": call.id}

    def _key(self, tool: str, args: Mapping[str, Any]) -> str | None:
        hasher = self._hashers[tool]
        # The gate only saves work, so the call is executed without it if it fails.
        with attempt(_log, "the hasher of %s failed; its call is executed", tool):
            return digest(canonical_value(dict(args))) if hasher is None else str(hasher(args))
        return None


class DisclosureGate:
    """Refuses calls of tools that are still withheld."""

    def __init__(self, disclosure: Disclosure) -> None:
        self._disclosure = disclosure

    def ask(self, call: PendingCall, args: Mapping[str, Any], memory: MutableMapping[str, Any]) -> Verdict:
        why = self._disclosure.refusal(call.name, memory)
        return Verdict(blocked=why, yields=True) if why else NOTHING


FrameworkGate: TypeAlias = SkillGate | BudgetGate | DedupGate | DisclosureGate
"""Each asks about a call, whose arguments are final."""


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
