from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType

import pytest

import weftline
import weftline.client
import weftline.testing

DAILY = [
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
"""What most programs need, from `weftline` itself."""

ENGINE = [
    *("agents", "attach", "awaits", "budgets", "calls", "calls_in_doubt", "close", "compare", "create_thread"),
    *(
        "durable",
        "export",
        "export_thread",
        "fork",
        "grants",
        "import_runs",
        "is_open",
        "lifespan",
        "observe",
        "override_prompt",
    ),
    *("prompt_overrides", "register", "replay", "runs", "runtime", "set_budget", "start", "thread", "threads"),
    *("unclaimed", "warmup"),
]
"""`runtime` is the door to what is below."""
BY_TOPIC = {
    "weftline.hooks": [
        "AfterModel",
        "ArgumentsCoerced",
        "ArgumentsRejected",
        "AwaitGate",
        "BeforeModel",
        "CallPoint",
        "ChildMcpToolGate",
        "ChildStreamEnd",
        "ChildStreamText",
        "ChildStreamThinking",
        "ChildToolAfter",
        "ChildToolBefore",
        "ChildToolError",
        "ChildToolGate",
        "ChildTurnAfter",
        "ContextBuilt",
        "Hook",
        "McpBootstrapEnd",
        "McpBootstrapStart",
        "McpConnect",
        "McpError",
        "McpToolAfter",
        "McpToolBefore",
        "McpToolGate",
        "McpToolTransform",
        "MessageInjected",
        "MessagesTaken",
        "OAuthRefreshed",
        "OutputBudgetExceeded",
        "OutputReady",
        "Point",
        "ResultsStored",
        "RowsLoaded",
        "RunCancelled",
        "RunEnded",
        "RunStarted",
        "SkillsActivate",
        "SkillsCatalog",
        "SkillsDeactivate",
        "SkillsResolve",
        "SpawnBefore",
        "SpawnComplete",
        "SpawnError",
        "StreamEnded",
        "SystemRendered",
        "TextStreamed",
        "ThinkingStreamed",
        "ToolAfter",
        "ToolAfterFailure",
        "ToolAfterSuccess",
        "ToolBefore",
        "ToolBudgetExceeded",
        "ToolError",
        "ToolGate",
        "ToolResultStored",
        "ToolTransform",
        "ToolUnknown",
        "TurnEnded",
        "UsageCounted",
        "ask_in_terminal",
        "keep_recent",
    ],
    "weftline.policies": [
        "BasicPolicy",
        "Caps",
        "Policy",
        "PolicyDecision",
        "PolicyTurn",
        "TagClause",
    ],
    "weftline.behaviors": [
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
    ],
    "weftline.runs": [
        "AgentFailed",
        "Await",
        "CallRecord",
        "ContextExceeded",
        "InvalidOutput",
        "ListedRun",
        "ListedThread",
        "OutputTruncated",
        "Provided",
        "ProviderFailed",
        "RunInfo",
        "SavedMessage",
        "trace",
    ],
    "weftline.tools": [
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
    ],
    "weftline.threads": [
        "AgentDefinition",
        "AgentType",
        "AttachmentRef",
        "CodeOptions",
        "ControllerContext",
        "ControllerDefinition",
        "DefinitionError",
        "EffectDefinition",
        "EndpointDefinition",
        "EnvType",
        "ExecutionState",
        "FileChunk",
        "FileRecord",
        "FileStats",
        "FindResult",
        "FunctionCall",
        "GlobalNamespaceContext",
        "GrepResult",
        "HookDefinition",
        "HookPoint",
        "HookToolCall",
        "Immediate",
        "MessageUpdates",
        "MessagesResult",
        "ModelCapabilities",
        "ModelDefinition",
        "NamespaceContext",
        "NewMessage",
        "PackedExports",
        "PackedMeta",
        "PackedMetadata",
        "PackedNamespaceContext",
        "Problem",
        "Project",
        "ProjectError",
        "PromptDefinition",
        "PromptEnvPart",
        "PromptIncludePart",
        "PromptPart",
        "PromptTextPart",
        "PromptToolConfig",
        "ProviderError",
        "ProviderFactory",
        "ReasoningConfig",
        "Registry",
        "Report",
        "Request",
        "Response",
        "Resumable",
        "Route",
        "ScheduleDefinition",
        "ScheduledEffect",
        "SessionToolBinding",
        "SideConfig",
        "SubagentRegistryEntry",
        "SubagentToolConfig",
        "SubpromptConfig",
        "SyncThreadState",
        "ThreadLog",
        "ThreadMessage",
        "ThreadState",
        "ToolAttachment",
        "ToolDefinition",
        "ToolEntry",
        "ToolResult",
        "VariableDefinition",
        "WriteFileOptions",
        "belongs_to_package",
        "check",
        "define_agent",
        "define_controller",
        "define_effect",
        "define_hook",
        "define_model",
        "define_prompt",
        "define_thread_endpoint",
        "define_tool",
        "from_json",
        "is_packed",
        "is_thread_endpoint",
        "is_visible_in_namespace",
        "load_project",
        "map_reasoning_level",
        "packed_folder",
        "read_project",
        "to_json",
        "validate_tool_name",
    ],
}


ELSEWHERE = [(module, name) for module, names in BY_TOPIC.items() for name in names if name not in DAILY]


def test_the_daily_names_are_exactly_these() -> None:
    assert sorted(weftline.__all__) == DAILY
    assert dir(weftline) == DAILY


@pytest.mark.parametrize("module", BY_TOPIC)
def test_the_names_of_a_topic_are_exactly_these(module: str) -> None:
    assert sorted(import_module(module).__all__) == BY_TOPIC[module]


def test_an_engine_has_these_methods_and_no_internals() -> None:
    assert [name for name in dir(weftline.Engine) if not name.startswith("_")] == ENGINE


@pytest.mark.parametrize("name", DAILY)
def test_a_daily_name_can_be_imported(name: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from weftline import {name}", namespace)
    assert namespace[name] is getattr(weftline, name)


@pytest.mark.parametrize(("module", "name"), ELSEWHERE)
def test_a_name_of_a_topic_is_nowhere_else(module: str, name: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from {module} import {name}", namespace)
    assert namespace[name] is getattr(import_module(module), name)
    for look in (lambda: getattr(weftline, name), lambda: exec(f"from weftline import {name}")):
        with pytest.raises((AttributeError, ImportError), match=f"`from {module} import {name}`"):
            look()
    assert not hasattr(weftline, name)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(weftline, "no_such_name")  # noqa: B009  (a plain attribute would be refused by the type checker)


PAGES = [weftline, weftline.client, weftline.testing, *map(import_module, BY_TOPIC)]


@pytest.mark.parametrize("module", PAGES, ids=lambda module: module.__name__)
def test_public_class_says_in_its_own_words_what_it_is(module: ModuleType) -> None:
    """Without, `help` shows those of its base class: a page about structs in general."""
    public = [getattr(module, name) for name in module.__all__]
    ours = [one for one in public if inspect.isclass(one) and one.__module__.startswith("weftline")]
    assert [one.__name__ for one in ours if not vars(one).get("__doc__")] == []
