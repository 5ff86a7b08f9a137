"""Behavior of agents: shorter requests, reminders, prompts, presets. See docs/behaviors.md."""

from typing import TYPE_CHECKING

from weftline.agent import presets
from weftline.agent.behavior import Behavior, Compaction, ThinkingDecay, ToolBudget, ToolSearch
from weftline.agent.preset import Preset, compose_presets
from weftline.agent.prompting import Prompt
from weftline.engine_options import RetryPolicy
from weftline.reminders import Reminder

__all__ = [
    "Behavior",
    "Compaction",
    "Preset",
    "Prompt",
    "Reminder",
    "RetryPolicy",
    "ThinkingDecay",
    "ToolBudget",
    "ToolSearch",
    "compose_presets",
    "presets",
]

if not TYPE_CHECKING:  # a type checker would assume that every name exists
    from weftline.text.public_pages import helping

    __getattr__ = helping(__name__)
