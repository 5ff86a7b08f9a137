"""The bodies that create runs, sessions and session messages, as pydantic models, with every limit of the spec.

The models only validate. The bytes are stored as they were sent; `wire.plan` makes the run's plan from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from weftline import run_ids
from weftline.kernel.control import OnDeploy
from weftline.wire.attachment_model import Attachments
from weftline.wire.awaits_model import AwaitsModel
from weftline.wire.budget_model import BudgetModel
from weftline.wire.engine_options_model import EngineOptionsModel
from weftline.wire.json_text import encode
from weftline.wire.limits import (
    ID_PATTERN,
    MAX_BUDGET_CALLS,
    MAX_BUDGET_NAME_CHARS,
    MAX_LOCAL_TIMEOUT_MS,
    MAX_LOOP_THRESHOLD,
    MAX_MESSAGES,
    MAX_METADATA_BYTES,
    MAX_METADATA_ENTRIES,
    MAX_METADATA_VALUE_CHARS,
    MAX_MODEL_FALLBACKS,
    MAX_MODEL_ID_CHARS,
    MAX_OUTPUT_SCHEMA_BYTES,
    MAX_OUTPUT_TOKENS,
    MAX_REASONING_LEVEL,
    MAX_RUN_NAME_CHARS,
    MAX_STOP_SEQUENCE_CHARS,
    MAX_STOP_SEQUENCES,
    MAX_TEMPERATURE,
    MAX_TOOL_BUDGETS,
    MAX_TOOLS,
    MAX_TOOLS_HEADERS_BYTES,
    MAX_TURN_ID_CHARS,
    METADATA_KEY_PATTERN,
    MIN_LOOP_HARD,
    MIN_LOOP_SOFT,
    REASONING_LEVELS,
    SCHEMA_NAME_PATTERN,
)
from weftline.wire.policy_model import PolicyModel
from weftline.wire.tool_refs import (
    A2AToolModel,
    McpLocalToolModel,
    McpToolModel,
    ToolRefModel,
    checked_schema,
    header_bytes,
    whole,
)

NO_NUL = r"^[^\x00]*$"


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def _reasoning(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value in REASONING_LEVELS):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if 0 <= value <= MAX_REASONING_LEVEL else 0.5
        if number.is_integer():
            return value
    raise PydanticCustomError(
        "reasoning_level",
        "must be one of {words} or an integer 0 to {max}",
        {"words": ", ".join(REASONING_LEVELS), "max": MAX_REASONING_LEVEL},
    )


class LoopDetectionModel(Part):
    consecutiveThreshold: Annotated[int, Field(ge=MIN_LOOP_SOFT, le=MAX_LOOP_THRESHOLD)] | None = None
    hardCutoffThreshold: Annotated[int, Field(ge=MIN_LOOP_HARD, le=MAX_LOOP_THRESHOLD)] | None = None


def _loop_detection(value: Any, check: ValidatorFunctionWrapHandler) -> LoopDetectionModel | None:
    if value is None or value is False:
        return None
    if not isinstance(value, dict):
        raise PydanticCustomError("loop_detection", "must be false or an object with thresholds")
    loop = cast("LoopDetectionModel", check(cast("object", value)))
    soft, hard = loop.consecutiveThreshold, loop.hardCutoffThreshold
    if soft is not None and hard is not None and hard <= soft:
        raise PydanticCustomError("loop_order", "hardCutoffThreshold must be greater than consecutiveThreshold")
    return loop


class ToolBudgetModel(Part):
    maxCalls: Annotated[int, Field(ge=0, le=MAX_BUDGET_CALLS)]


class BudgetsModel(Part):
    maxToolTurns: Annotated[int, Field(ge=0)] | None = None
    maxToolTurnsExceeded: Literal["error", "finalize"] | None = None
    localToolTimeoutMs: Annotated[int, Field(gt=0, le=MAX_LOCAL_TIMEOUT_MS)] | None = None
    onLocalToolTimeout: Literal["end", "report"] | None = None
    inDoubt: Literal["report", "ask"] | None = None
    onLeaseLost: Literal["reoffer", "fallback", "error"] | None = None
    leaseFallbacks: (
        Annotated[
            dict[
                Annotated[str, StringConstraints(min_length=1, max_length=MAX_BUDGET_NAME_CHARS)],
                Annotated[str, StringConstraints(min_length=1, max_length=MAX_BUDGET_NAME_CHARS)],
            ],
            Field(max_length=MAX_TOOL_BUDGETS),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _has_fallbacks(self) -> Self:
        if self.onLeaseLost == "fallback" and not self.leaseFallbacks:
            raise PydanticCustomError("lease_fallbacks", "onLeaseLost is `fallback`, and leaseFallbacks names no tool")
        if self.onLeaseLost in ("reoffer", "error") and self.leaseFallbacks:
            raise PydanticCustomError("lease_fallbacks", "leaseFallbacks needs onLeaseLost `fallback`")
        return self


class OutputSchemaModel(Part):
    name: Annotated[str, StringConstraints(pattern=whole(SCHEMA_NAME_PATTERN))] | None = None
    json_schema: Annotated[dict[str, Any], Field(alias="schema"), AfterValidator(checked_schema)]


def _output_schema_size(value: object) -> object:
    if value is not None and len(encode(value)) > MAX_OUTPUT_SCHEMA_BYTES:
        raise _too_many_bytes(MAX_OUTPUT_SCHEMA_BYTES)
    return value


def _metadata_size(metadata: dict[str, str]) -> dict[str, str]:
    if len(encode(metadata)) > MAX_METADATA_BYTES:
        raise _too_many_bytes(MAX_METADATA_BYTES)
    return metadata


def _too_many_bytes(limit: int) -> PydanticCustomError:
    return PydanticCustomError("size", "has more than {limit} bytes as JSON", {"limit": limit})


Metadata: TypeAlias = Annotated[
    dict[
        Annotated[str, StringConstraints(pattern=whole(METADATA_KEY_PATTERN))],
        Annotated[str, StringConstraints(max_length=MAX_METADATA_VALUE_CHARS, pattern=NO_NUL)],
    ],
    Field(max_length=MAX_METADATA_ENTRIES),
    AfterValidator(_metadata_size),
]

ToolBudgets: TypeAlias = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=MAX_BUDGET_NAME_CHARS)], ToolBudgetModel],
    Field(max_length=MAX_TOOL_BUDGETS),
]


class ChatMessageModel(Part):
    role: Literal["user", "assistant", "system"]
    content: str
    attachments: Attachments | None = None


def _or_false(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"const": False})


_REASONING_SCHEMA = {
    "anyOf": [
        {"enum": list(REASONING_LEVELS)},
        {"type": "integer", "minimum": 0, "maximum": MAX_REASONING_LEVEL},
        {"type": "null"},
    ]
}


def _tools_size(tools: list[ToolRefModel]) -> list[ToolRefModel]:
    if not tools:
        return tools
    count = len(tools) + sum([len(tool.tools) - 1 for tool in tools if isinstance(tool, McpLocalToolModel)])
    if count > MAX_TOOLS:
        raise PydanticCustomError(
            "tool_count", "has {count} tools; at most {limit} are allowed", {"count": count, "limit": MAX_TOOLS}
        )
    size = sum([header_bytes(tool.headers) for tool in tools if isinstance(tool, A2AToolModel | McpToolModel)])
    if size > MAX_TOOLS_HEADERS_BYTES:
        limit = {"limit": MAX_TOOLS_HEADERS_BYTES}
        raise PydanticCustomError("headers_size", "must have at most {limit} bytes in all values of headers", limit)
    return tools


_StopSequence: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_SEQUENCE_CHARS)]


def _no_dry_run(plan: Any) -> Any:
    options = cast("dict[str, Any]", plan) if isinstance(plan, dict) else {}
    if options.get("planOnly") not in (None, False):
        raise PydanticCustomError(
            "plan", "asks for a dry run (`planOnly`), which is not supported: the agent would really run"
        )
    return cast("object", plan)


def asks_for_checklist(plan: Any) -> bool:
    """Whether a valid `plan` asks for a checklist of steps beside the run, which is not made."""
    if isinstance(plan, dict):
        options = cast("dict[str, Any]", plan)
        return options.get("mode") != "off" and any(options[name] for name in options if name != "planOnly")
    return plan not in (None, False, "off")


class _Settings(Part):
    """The settings that a run, a session and a message to a session have in common."""

    plan: Annotated[Any, AfterValidator(_no_dry_run)] = None
    tools: Annotated[list[ToolRefModel], Field(max_length=MAX_TOOLS), AfterValidator(_tools_size)] | None = None
    metadata: Metadata | None = None
    labels: Metadata | None = None
    reasoningLevel: Annotated[Any, AfterValidator(_reasoning), WithJsonSchema(_REASONING_SCHEMA)] = None
    outputSchema: Annotated[OutputSchemaModel | None, BeforeValidator(_output_schema_size)] = None
    loopDetection: Annotated[
        LoopDetectionModel | None, WrapValidator(_loop_detection), Field(json_schema_extra=_or_false)
    ] = None
    toolBudgets: ToolBudgets | None = None
    budgets: BudgetsModel | None = None
    policy: PolicyModel | None = None
    budget: BudgetModel | None = None
    awaits: AwaitsModel | None = None
    streamArguments: bool | None = None
    onDeploy: OnDeploy | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    topP: Annotated[float, Field(ge=0, le=1)] | None = None
    stopSequences: Annotated[list[_StopSequence], Field(max_length=MAX_STOP_SEQUENCES)] | None = None
    maxOutputTokens: Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None


_Messages: TypeAlias = Annotated[list[ChatMessageModel], Field(min_length=1, max_length=MAX_MESSAGES)]


TurnId: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TURN_ID_CHARS, pattern=NO_NUL)]


def _run_id(value: str) -> str:
    if not run_ids.is_possible(value):
        raise PydanticCustomError("run_id", "{wanted}", {"wanted": run_ids.WANTED})
    return value


RunId: TypeAlias = Annotated[
    str,
    AfterValidator(_run_id),
    WithJsonSchema({"type": "string", "pattern": run_ids.PATTERN, "maxLength": run_ids.MAX_CHARS}),
]


class MessageModel(EngineOptionsModel, _Settings):
    """A message to a session: `prompt` or `messages`, and what it sets for this one run."""

    prompt: str | None = None
    messages: _Messages | None = None
    attachments: Attachments | None = None
    turnId: TurnId | None = None
    runId: RunId | None = None


ModelId: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_MODEL_ID_CHARS)]


def _one_spelling(fallback: str | None, info: ValidationInfo) -> str | None:
    if fallback is not None and info.data.get("modelFallbacks"):
        raise PydanticCustomError("fallbacks", "is a list of one in `modelFallbacks`; give one of the two")
    return fallback


class SessionModel(_Settings):
    """A session: everything that a run has except its input."""

    name: Annotated[str, StringConstraints(max_length=MAX_RUN_NAME_CHARS, pattern=NO_NUL)] | None = None
    agentId: Annotated[str, StringConstraints(pattern=whole(ID_PATTERN))] | None = None
    systemPrompt: str | None = None
    modelId: ModelId | None = None
    modelFallbacks: Annotated[list[ModelId], Field(max_length=MAX_MODEL_FALLBACKS)] | None = None
    fallbackModelId: Annotated[ModelId | None, AfterValidator(_one_spelling)] = None


class RunModel(EngineOptionsModel, SessionModel):
    """A run: `prompt` or `messages`, and how to run it."""

    prompt: str | None = None
    messages: _Messages | None = None
    attachments: Attachments | None = None
    turnId: TurnId | None = None
    runId: RunId | None = None
