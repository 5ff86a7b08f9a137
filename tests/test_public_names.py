from __future__ import annotations

import inspect
from types import ModuleType

import pytest

import weftline
import weftline.client
import weftline.testing

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


@pytest.mark.parametrize("module", [weftline, weftline.client, weftline.testing], ids=lambda module: module.__name__)
def test_a_public_class_says_in_its_own_words_what_it_is(module: ModuleType) -> None:
    """Without, `help` shows those of its base class: a page about structs in general."""
    public = [getattr(module, name) for name in module.__all__]
    ours = [one for one in public if inspect.isclass(one) and one.__module__.startswith("weftline")]
    assert [one.__name__ for one in ours if not vars(one).get("__doc__")] == []
