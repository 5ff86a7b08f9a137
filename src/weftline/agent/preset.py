"""Presets: what several agents have in common, apart from their model.

careful = Preset(instructions="Check twice.", behavior=Behavior(tool_budgets={"pay": 1}))
agent = Agent("openai:gpt-5", preset=compose_presets(careful, Preset(hooks=[watch])))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, UnsetType

from weftline.agent.agent_tools import AgentTool, merged
from weftline.agent.behavior import Behavior
from weftline.agent.context import RunContext
from weftline.agent.hooking.calling import Hook
from weftline.agent.settings import Limits, Settings

_NO_BEHAVIOR, _NO_SETTINGS = Behavior(), Settings()


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Each field is the default for an agent that does not set it itself. Hooks and tools add up.

    A name or instructions of None count as set: they remove those of an earlier preset.
    """

    name: str | UnsetType | None = UNSET
    instructions: str | Callable[[RunContext[Any]], str | Awaitable[str]] | UnsetType | None = UNSET
    tools: Sequence[AgentTool[Any]] = ()
    tool_aliases: Mapping[str, str] | None = None
    behavior: Behavior = _NO_BEHAVIOR
    settings: Settings = _NO_SETTINGS
    limits: Limits | UnsetType | None = UNSET
    hooks: Sequence[Hook[Any]] | Hook[Any] = ()

    @property
    def all_hooks(self) -> tuple[Hook[Any], ...]:
        return (self.hooks,) if isinstance(self.hooks, Hook) else tuple(self.hooks)


def compose_presets(*presets: Preset) -> Preset:
    """Combines several presets.

    Later ones win, knob by knob and tool by tool; all hooks are called, earlier ones first.

    Tools with the same name replace each other. So do toolsets with a name, such as MCP servers, and skills.
    """
    made = Preset()
    for one in presets:
        made = Preset(
            name=made.name if one.name is UNSET else one.name,
            instructions=made.instructions if one.instructions is UNSET else one.instructions,
            tools=merged(made.tools, one.tools),
            tool_aliases={**(made.tool_aliases or {}), **(one.tool_aliases or {})},
            behavior=one.behavior.over(made.behavior),
            settings=one.settings.over(made.settings),
            limits=made.limits if one.limits is UNSET else one.limits,
            hooks=(*made.all_hooks, *one.all_hooks),
        )
    return made
