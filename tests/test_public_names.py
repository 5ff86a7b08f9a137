from __future__ import annotations

import pytest

import weftline

PUBLIC = [
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


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(weftline.__all__) == PUBLIC
    assert dir(weftline) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_can_be_imported(name: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from weftline import {name}", namespace)
    assert namespace[name] is getattr(weftline, name)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(weftline, "no_such_name")  # noqa: B009  (a plain attribute would be refused by the type checker)
