"""Every name that the thread specification exports has its counterpart here."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from weftline.threads import map_reasoning_level

PAGE = Path(__file__).parents[2] / "docs" / "thread-names.md"
ROW = re.compile(r"^\| `(\w+)` \| `([\w.]+)` \|$", re.MULTILINE)
THERE = """
AgentDefinition AgentType AttachmentRef CodeExecution CodeExecutionError CodeExecutionLog CodeExecutionOptions
CodeExecutionResult CodeExecutionStatus ContentPart Controller ControllerContext ControllerReturn DefineToolOptions
DefinitionLoader Effect EffectDefinition EmptyUsesState EnvValueType ExecutionState FileChunk FilePart FileRecord
FileStats FileStorage FindResult GetMessagesOptions GlobalNamespaceContext GrepResult HookContext HookDefinition
HookDefinitionOptions HookDefinitionResult HookMessage HookName HookSignatures HookToolCall HookToolResult
ImageContent ImagePart ImageUrlPart InferProviderOptions InjectMessageInput InspectedRequest LLMMessage
LLMProviderInterface MarkedThreadEndpoint Message MessageUpdates MessagesResult ModelCapabilities ModelDefinition
ModelProvider NamespaceContext PackageSignature PackedExports PackedMeta PackedMetadata PackedNamespaceContext
PromptContent PromptDefinition PromptEnvPart PromptIncludePart PromptInput PromptPart PromptTextPart PromptToolConfig
ProviderAssistantMessage ProviderAttachment ProviderError ProviderErrorCode ProviderExecutedToolResult ProviderFactory
ProviderFactoryConfig ProviderFactoryWithOptions ProviderFinishReason ProviderGeneratedImage ProviderInstance
ProviderMessage ProviderMessageContent ProviderModelInfo ProviderModelsPage ProviderModelsQuery
ProviderReasoningDetail ProviderRequest ProviderResponse ProviderStreamChunk ProviderSystemMessage ProviderTool
ProviderToolCallPart ProviderToolMessage ProviderToolResultContent ProviderUsage ProviderUserMessage
ProviderWebSearchResult QueueMessageInput ReadFileStreamOptions ReaddirResult ReasoningConfig ResolveUsesState
ResponseSummary ScheduledEffect SessionToolBinding SessionToolConfig SetEnvOptions SideConfig StructuredPrompt
SubagentRegistryEntry SubagentToolConfig SubpromptConfig THREAD_ENDPOINT_SYMBOL TenvRawShape TextContent TextPart
ThreadEndpointHandler ThreadEndpointRouteParams ThreadMetadata ThreadState Tool ToolArgs ToolArgsNode ToolArgsRawShape
ToolAttachment ToolConfig ToolContent ToolDefinition ToolResult ToolTenvs ToolVariables UsesAwareExecute
UsesConstrainedState VariableDefinition VariableType VirtualModuleLoader VirtualModuleRegistry WriteFileOptions
belongsToPackage defineAgent defineController defineEffect defineHook defineModel definePrompt defineThreadEndpoint
defineTool isPacked isThreadEndpoint isVisibleInNamespace mapReasoningLevel validateToolName
"""


def found(path: str) -> bool:
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: object = import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for name in parts[end:]:
            if not hasattr(value, name) and name not in getattr(value, "__annotations__", {}):
                return False
            value = getattr(value, name, None)
        return True
    return False


@pytest.mark.requirement("thread.define.public_names")
def test_every_name_of_the_specification_has_a_counterpart() -> None:
    rows = dict(ROW.findall(PAGE.read_text(encoding="utf-8")))
    assert sorted(rows) == sorted(re.findall(r"\w+", THERE))
    assert [path for path in rows.values() if not found(path)] == []


@pytest.mark.requirement("thread.define.public_names")
@pytest.mark.parametrize(
    ("level", "word"), [(0, None), (14, None), (16, "low"), (45, "low"), (46, "high"), (100, "high")]
)
def test_reasoning_level_is_the_nearest_and_of_two_the_lower(level: int, word: str | None) -> None:
    assert map_reasoning_level(level, {60: "high", 0: None, 30: "low"}) == word
    assert map_reasoning_level(level, {}) is None
