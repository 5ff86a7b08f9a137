"""Weftline: a self-hosted, durable runtime for LLM agents.

The names in `__all__` are what most programs need. The others that are public and stable are in `weftline.hooks`,
`tools`, `policies`, `behaviors`, `runs`, `threads`, `events`, `errors`, `messages`, `client`, `providers`, `sandbox`
and `testing`; everything else may change. Each name is imported on first use, so `import weftline` is cheap.
"""

from typing import TYPE_CHECKING

from weftline._version import __version__

__all__ = [
    "Agent",
    "Budget",
    "Engine",
    "Limits",
    "Run",
    "RunCancelled",
    "RunContext",
    "RunFailed",
    "RunResult",
    "Settings",
    "Thread",
    "ToolContext",
    "ToolFailed",
    "WeftlineError",
    "__version__",
    "a2a",
    "asgi",
    "ask_user",
    "code",
    "fetch",
    "files",
    "hook",
    "mcp",
    "shell",
    "skills",
    "spawn",
    "tool",
]

if TYPE_CHECKING:
    from weftline.agent.agent import Agent
    from weftline.agent.context import RunContext
    from weftline.agent.engine.engine import Engine
    from weftline.agent.hooking.calling import hook
    from weftline.agent.results import RunCancelled, RunFailed, RunResult
    from weftline.agent.run import Run
    from weftline.agent.settings import Budget, Limits, Settings
    from weftline.agent.skills.toolset import skills
    from weftline.agent.subagents import spawn
    from weftline.agent.threads import Thread
    from weftline.errors import WeftlineError
    from weftline.server.mounted import asgi
    from weftline.tools.base import ToolContext, ToolFailed
    from weftline.tools.builtin.code import code
    from weftline.tools.builtin.fetch import fetch
    from weftline.tools.builtin.files import files
    from weftline.tools.builtin.people import ask_user
    from weftline.tools.builtin.shell import shell
    from weftline.tools.decorator import tool
    from weftline.tools.mcp.toolset import mcp
    from weftline.tools.peers import a2a
else:
    # Hidden from type checkers, which would assume from a module `__getattr__` that every name exists.
    from weftline.text.public_pages import lazy_names

    _HOMES = {
        "Agent": "weftline.agent.agent",
        "Budget": "weftline.agent.settings",
        "Engine": "weftline.agent.engine.engine",
        "Limits": "weftline.agent.settings",
        "Run": "weftline.agent.run",
        "RunCancelled": "weftline.agent.results",
        "RunContext": "weftline.agent.context",
        "RunFailed": "weftline.agent.results",
        "RunResult": "weftline.agent.results",
        "Settings": "weftline.agent.settings",
        "Thread": "weftline.agent.threads",
        "ToolContext": "weftline.tools.base",
        "ToolFailed": "weftline.tools.base",
        "WeftlineError": "weftline.errors",
        "a2a": "weftline.tools.peers",
        "asgi": "weftline.server.mounted",
        "ask_user": "weftline.tools.builtin.people",
        "code": "weftline.tools.builtin.code",
        "fetch": "weftline.tools.builtin.fetch",
        "files": "weftline.tools.builtin.files",
        "hook": "weftline.agent.hooking.calling",
        "mcp": "weftline.tools.mcp.toolset",
        "shell": "weftline.tools.builtin.shell",
        "skills": "weftline.agent.skills.toolset",
        "spawn": "weftline.agent.subagents",
        "tool": "weftline.tools.decorator",
    }

    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
