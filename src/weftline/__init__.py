"""Weftline: a self-hosted, durable runtime for LLM agents.

The names in `__all__` are public and stable; everything else may change. Each name is imported on first use, so `import
weftline` costs next to nothing.
"""

from typing import TYPE_CHECKING

from weftline._version import __version__

__all__ = [
    "AfterModel",
    "Agent",
    "BeforeModel",
    "ChildToolGate",
    "Conflict",
    "ContextBuilt",
    "Engine",
    "Happened",
    "Hook",
    "Limits",
    "OutputReady",
    "Run",
    "RunCancelled",
    "RunContext",
    "RunFailed",
    "RunInfo",
    "RunResult",
    "Settings",
    "Skill",
    "SystemRendered",
    "Thread",
    "ToolAfter",
    "ToolBefore",
    "ToolContext",
    "ToolFailed",
    "ToolGate",
    "ToolInDoubt",
    "ToolOutput",
    "ToolTransform",
    "Unknown",
    "WeftlineError",
    "WillNotHappen",
    "__version__",
    "asgi",
    "files",
    "hook",
    "shell",
    "skills",
    "spawn",
    "todo",
    "tool",
]

if TYPE_CHECKING:
    from weftline.agent.agent import Agent
    from weftline.agent.calling import Hook, hook
    from weftline.agent.child_hooks import ChildToolGate
    from weftline.agent.context import RunContext, RunInfo
    from weftline.agent.engine import Engine
    from weftline.agent.hooks import (
        AfterModel,
        BeforeModel,
        ContextBuilt,
        OutputReady,
        SystemRendered,
        ToolAfter,
        ToolBefore,
        ToolGate,
        ToolTransform,
    )
    from weftline.agent.results import RunCancelled, RunFailed, RunResult
    from weftline.agent.run import Run
    from weftline.agent.settings import Limits, Settings
    from weftline.agent.skills.format import Skill
    from weftline.agent.skills.toolset import skills
    from weftline.agent.subagents import spawn
    from weftline.agent.threads import Thread
    from weftline.errors import Conflict, WeftlineError
    from weftline.server.mounted import asgi
    from weftline.tools.base import Happened, ToolContext, ToolFailed, ToolInDoubt, ToolOutput, Unknown, WillNotHappen
    from weftline.tools.builtin.files import files
    from weftline.tools.builtin.shell import shell
    from weftline.tools.builtin.todo import todo
    from weftline.tools.function import tool
else:
    # Hidden from type checkers, which take a module `__getattr__` to mean that every name exists.
    _HOMES = {
        "AfterModel": "weftline.agent.hooks",
        "Agent": "weftline.agent.agent",
        "BeforeModel": "weftline.agent.hooks",
        "ChildToolGate": "weftline.agent.child_hooks",
        "Conflict": "weftline.errors",
        "ContextBuilt": "weftline.agent.hooks",
        "Engine": "weftline.agent.engine",
        "Happened": "weftline.tools.base",
        "Hook": "weftline.agent.calling",
        "Limits": "weftline.agent.settings",
        "OutputReady": "weftline.agent.hooks",
        "Run": "weftline.agent.run",
        "RunCancelled": "weftline.agent.results",
        "RunContext": "weftline.agent.context",
        "RunFailed": "weftline.agent.results",
        "RunInfo": "weftline.agent.context",
        "RunResult": "weftline.agent.results",
        "Settings": "weftline.agent.settings",
        "Skill": "weftline.agent.skills.format",
        "SystemRendered": "weftline.agent.hooks",
        "Thread": "weftline.agent.threads",
        "ToolAfter": "weftline.agent.hooks",
        "ToolBefore": "weftline.agent.hooks",
        "ToolContext": "weftline.tools.base",
        "ToolFailed": "weftline.tools.base",
        "ToolGate": "weftline.agent.hooks",
        "ToolInDoubt": "weftline.tools.base",
        "ToolOutput": "weftline.tools.base",
        "ToolTransform": "weftline.agent.hooks",
        "Unknown": "weftline.tools.base",
        "WeftlineError": "weftline.errors",
        "WillNotHappen": "weftline.tools.base",
        "asgi": "weftline.server.mounted",
        "files": "weftline.tools.builtin.files",
        "hook": "weftline.agent.calling",
        "shell": "weftline.tools.builtin.shell",
        "skills": "weftline.agent.skills.toolset",
        "spawn": "weftline.agent.subagents",
        "todo": "weftline.tools.builtin.todo",
        "tool": "weftline.tools.function",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted(__all__)
