"""Results and errors of tools, their less common parameters, and toolsets of your own. See docs/tools.md.

Each name is imported on first use: everything below this package imports it first.
"""

from typing import TYPE_CHECKING

__all__ = [
    "Bounded",
    "Happened",
    "Hint",
    "Injected",
    "Paging",
    "ServerData",
    "Skill",
    "Telemetry",
    "ToolInDoubt",
    "ToolOutput",
    "ToolQuestion",
    "ToolsetCall",
    "Unknown",
    "WillNotHappen",
    "present_plan",
    "todo",
    "tool_search",
    "toolset",
]

if TYPE_CHECKING:
    from weftline.agent.agent_tools import toolset
    from weftline.agent.running.disclosure import tool_search
    from weftline.agent.skills.format import Skill
    from weftline.failure import Hint, ServerData, Telemetry
    from weftline.tools.arguments import Injected
    from weftline.tools.base import (
        Happened,
        Paging,
        ToolInDoubt,
        ToolOutput,
        ToolQuestion,
        ToolsetCall,
        Unknown,
        WillNotHappen,
    )
    from weftline.tools.builtin.people import present_plan
    from weftline.tools.builtin.todo import todo
    from weftline.tools.results import Bounded
else:
    # Hidden from type checkers, which would assume from a module `__getattr__` that every name exists.
    from weftline.text.public_pages import lazy_names

    _HOMES = {
        "Bounded": "weftline.tools.results",
        "Happened": "weftline.tools.base",
        "Hint": "weftline.failure",
        "Injected": "weftline.tools.arguments",
        "Paging": "weftline.tools.base",
        "ServerData": "weftline.failure",
        "Skill": "weftline.agent.skills.format",
        "Telemetry": "weftline.failure",
        "ToolInDoubt": "weftline.tools.base",
        "ToolOutput": "weftline.tools.base",
        "ToolQuestion": "weftline.tools.base",
        "ToolsetCall": "weftline.tools.base",
        "Unknown": "weftline.tools.base",
        "WillNotHappen": "weftline.tools.base",
        "present_plan": "weftline.tools.builtin.people",
        "todo": "weftline.tools.builtin.todo",
        "tool_search": "weftline.agent.running.disclosure",
        "toolset": "weftline.agent.agent_tools",
    }

    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
