"""Weftline: a self-hosted, durable runtime for LLM agents.

The names in `__all__` are public and stable; everything else may change. Each name is imported on first use, so `import
weftline` is cheap.
"""

from typing import TYPE_CHECKING

from weftline._version import __version__

__all__ = [
    "AfterModel",
    "Agent",
    "Await",
    "AwaitGate",
    "BasicPolicy",
    "BeforeModel",
    "Behavior",
    "Bounded",
    "Budget",
    "Caps",
    "ChildToolGate",
    "Compaction",
    "Conflict",
    "ContextBuilt",
    "Engine",
    "Happened",
    "Hint",
    "Hook",
    "Injected",
    "Limits",
    "McpError",
    "McpToolGate",
    "OutputReady",
    "Paging",
    "Policy",
    "PolicyDecision",
    "PolicyTurn",
    "Preset",
    "Prompt",
    "Provided",
    "Reminder",
    "RetryPolicy",
    "Run",
    "RunCancelled",
    "RunContext",
    "RunFailed",
    "RunInfo",
    "RunResult",
    "ServerData",
    "Settings",
    "Skill",
    "SystemRendered",
    "TagClause",
    "Telemetry",
    "ThinkingDecay",
    "Thread",
    "ToolAfter",
    "ToolBefore",
    "ToolBudget",
    "ToolContext",
    "ToolFailed",
    "ToolGate",
    "ToolInDoubt",
    "ToolOutput",
    "ToolQuestion",
    "ToolSearch",
    "ToolTransform",
    "ToolsetCall",
    "Unknown",
    "WeftlineError",
    "WillNotHappen",
    "__version__",
    "a2a",
    "asgi",
    "ask_in_terminal",
    "ask_user",
    "code",
    "compose_presets",
    "fetch",
    "files",
    "hook",
    "keep_recent",
    "mcp",
    "present_plan",
    "shell",
    "skills",
    "spawn",
    "todo",
    "tool",
    "tool_search",
    "toolset",
]

if TYPE_CHECKING:
    from weftline.agent.agent import Agent
    from weftline.agent.behavior import Behavior, ThinkingDecay, ToolBudget, ToolSearch
    from weftline.agent.budget import Budget
    from weftline.agent.compaction import Compaction
    from weftline.agent.context import RunContext, RunInfo
    from weftline.agent.engine.engine import Engine
    from weftline.agent.hooking.calling import Hook, hook
    from weftline.agent.hooks import (
        AfterModel,
        AwaitGate,
        BeforeModel,
        ContextBuilt,
        OutputReady,
        SystemRendered,
        ToolAfter,
        ToolBefore,
        ToolGate,
        ToolTransform,
    )
    from weftline.agent.hooks_outside import ChildToolGate, McpError, McpToolGate
    from weftline.agent.policy import BasicPolicy, Caps, Policy, PolicyDecision, PolicyTurn
    from weftline.agent.preset import Preset, compose_presets
    from weftline.agent.prompting import Prompt
    from weftline.agent.requests.shortening import keep_recent
    from weftline.agent.results import RunCancelled, RunFailed, RunResult
    from weftline.agent.run import Run
    from weftline.agent.running.asking import Await
    from weftline.agent.running.disclosure import tool_search
    from weftline.agent.settings import Limits, Settings
    from weftline.agent.skills.format import Skill
    from weftline.agent.skills.toolset import skills
    from weftline.agent.subagents import spawn
    from weftline.agent.terminal import ask_in_terminal
    from weftline.agent.threads import Thread
    from weftline.agent.toolsets import toolset
    from weftline.engine_options import RetryPolicy
    from weftline.errors import Conflict, WeftlineError
    from weftline.failure import Hint
    from weftline.kernel.policy import TagClause
    from weftline.outcome import ServerData, Telemetry
    from weftline.reminders import Reminder
    from weftline.runtime.tool_calls.provided import Provided
    from weftline.server.mounted import asgi
    from weftline.tools.base import (
        Happened,
        ToolContext,
        ToolFailed,
        ToolInDoubt,
        ToolOutput,
        ToolQuestion,
        Unknown,
        WillNotHappen,
    )
    from weftline.tools.bounding import Bounded, Paging
    from weftline.tools.builtin.code import code
    from weftline.tools.builtin.fetch import fetch
    from weftline.tools.builtin.files import files
    from weftline.tools.builtin.people import ask_user, present_plan
    from weftline.tools.builtin.shell import shell
    from weftline.tools.builtin.todo import todo
    from weftline.tools.decorator import tool
    from weftline.tools.injected import Injected
    from weftline.tools.mcp.toolset import mcp
    from weftline.tools.peers import a2a
    from weftline.tools.shaping import ToolsetCall
else:
    # Hidden from type checkers, which would assume from a module `__getattr__` that every name exists.
    _HOMES = {
        "AfterModel": "weftline.agent.hooks",
        "Agent": "weftline.agent.agent",
        "Await": "weftline.agent.running.asking",
        "AwaitGate": "weftline.agent.hooks",
        "BeforeModel": "weftline.agent.hooks",
        "BasicPolicy": "weftline.agent.policy",
        "Bounded": "weftline.tools.bounding",
        "Paging": "weftline.tools.bounding",
        "Provided": "weftline.runtime.tool_calls.provided",
        "ServerData": "weftline.outcome",
        "Behavior": "weftline.agent.behavior",
        "Budget": "weftline.agent.budget",
        "Caps": "weftline.agent.policy",
        "Compaction": "weftline.agent.compaction",
        "ChildToolGate": "weftline.agent.hooks_outside",
        "Conflict": "weftline.errors",
        "ContextBuilt": "weftline.agent.hooks",
        "Engine": "weftline.agent.engine.engine",
        "Happened": "weftline.tools.base",
        "Hint": "weftline.failure",
        "Injected": "weftline.tools.injected",
        "Hook": "weftline.agent.hooking.calling",
        "Limits": "weftline.agent.settings",
        "McpError": "weftline.agent.hooks_outside",
        "McpToolGate": "weftline.agent.hooks_outside",
        "OutputReady": "weftline.agent.hooks",
        "Policy": "weftline.agent.policy",
        "PolicyDecision": "weftline.agent.policy",
        "PolicyTurn": "weftline.agent.policy",
        "Preset": "weftline.agent.preset",
        "Prompt": "weftline.agent.prompting",
        "Reminder": "weftline.reminders",
        "RetryPolicy": "weftline.engine_options",
        "Run": "weftline.agent.run",
        "RunCancelled": "weftline.agent.results",
        "RunContext": "weftline.agent.context",
        "RunFailed": "weftline.agent.results",
        "RunInfo": "weftline.agent.context",
        "RunResult": "weftline.agent.results",
        "Settings": "weftline.agent.settings",
        "Skill": "weftline.agent.skills.format",
        "SystemRendered": "weftline.agent.hooks",
        "TagClause": "weftline.kernel.policy",
        "Telemetry": "weftline.outcome",
        "ThinkingDecay": "weftline.agent.behavior",
        "Thread": "weftline.agent.threads",
        "ToolAfter": "weftline.agent.hooks",
        "ToolBefore": "weftline.agent.hooks",
        "ToolBudget": "weftline.agent.behavior",
        "ToolContext": "weftline.tools.base",
        "ToolFailed": "weftline.tools.base",
        "ToolGate": "weftline.agent.hooks",
        "ToolInDoubt": "weftline.tools.base",
        "ToolOutput": "weftline.tools.base",
        "ToolQuestion": "weftline.tools.base",
        "ToolSearch": "weftline.agent.behavior",
        "ToolTransform": "weftline.agent.hooks",
        "ToolsetCall": "weftline.tools.shaping",
        "Unknown": "weftline.tools.base",
        "WeftlineError": "weftline.errors",
        "WillNotHappen": "weftline.tools.base",
        "a2a": "weftline.tools.peers",
        "asgi": "weftline.server.mounted",
        "ask_in_terminal": "weftline.agent.terminal",
        "ask_user": "weftline.tools.builtin.people",
        "code": "weftline.tools.builtin.code",
        "compose_presets": "weftline.agent.preset",
        "fetch": "weftline.tools.builtin.fetch",
        "files": "weftline.tools.builtin.files",
        "hook": "weftline.agent.hooking.calling",
        "keep_recent": "weftline.agent.requests.shortening",
        "mcp": "weftline.tools.mcp.toolset",
        "present_plan": "weftline.tools.builtin.people",
        "shell": "weftline.tools.builtin.shell",
        "skills": "weftline.agent.skills.toolset",
        "spawn": "weftline.agent.subagents",
        "todo": "weftline.tools.builtin.todo",
        "tool": "weftline.tools.decorator",
        "tool_search": "weftline.agent.running.disclosure",
        "toolset": "weftline.agent.toolsets",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted(__all__)
