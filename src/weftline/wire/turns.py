"""A turn of a run in the protocol's format: what the model was sent, what it answered, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType
from msgspec.json import decode

from weftline.kernel.entries import How
from weftline.messages import (
    Assistant,
    Message,
    ProviderCall,
    System,
    Thinking,
    ToolCall,
    ToolResult,
    User,
    joined_text,
)
from weftline.plan import A2ALocalRef, A2ARef, LocalRef, McpLocalRef, McpRef, StoredRef, ToolRef
from weftline.text.redaction import redact_url
from weftline.wire.responses import Time
from weftline.wire.run_responses import ModelUsed, Tokens
from weftline.wire.session_responses import AttachmentInfo, attachment_infos


class TurnCall(Struct, rename="camel", kw_only=True):
    """A call in a message of the model. In the answer of a turn, also what became of it."""

    tool_use_id: str
    name: str
    args: Any
    """The arguments: an object, or the text if it is not JSON."""
    how: How | UnsetType | None = UNSET
    """How it was closed, as in the list of calls; null while it is open."""
    ok: bool | UnsetType = UNSET
    result: str | UnsetType = UNSET


class TurnResult(Struct, rename="camel", kw_only=True):
    """The result of a call, as the model reads it."""

    tool_use_id: str
    name: str
    ok: bool
    text: str
    attachments: list[AttachmentInfo] | UnsetType = UNSET


class TurnMessage(Struct, rename="camel", kw_only=True):
    """A message, as the model reads it. Fields that it does not have are left out."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str | UnsetType = UNSET
    attachments: list[AttachmentInfo] | UnsetType = UNSET
    injected: Literal[True] | UnsetType = UNSET
    """Present in what the server added, such as a nudge."""
    thinking: str | UnsetType = UNSET
    calls: list[TurnCall] | UnsetType = UNSET
    provider_calls: list[TurnCall] | UnsetType = UNSET
    """Tools that the provider ran itself."""
    results: list[TurnResult] | UnsetType = UNSET
    """For the role `tool`: the results of the calls of the message before it."""


class TurnTool(Struct, rename="camel", kw_only=True):
    """A tool of the run. One without parameters is defined elsewhere, under this name."""

    kind: str
    name: str
    description: str | UnsetType = UNSET
    parameters: Any = UNSET
    url: str | UnsetType = UNSET


class TurnRequest(Struct, rename="camel", kw_only=True):
    system_prompt: str | None
    tools: list[TurnTool]
    tools_of_agent: str | None
    """The agent in code that has further tools, if an older version wrote the log, which lacks them."""
    tools_disabled: bool
    """The turn was the last one, and had no tools."""
    messages: list[TurnMessage]
    earlier: int
    """How many of the messages the previous turn had as well."""
    output_schema: Any
    reasoning_level: int | None
    settings: dict[str, Any]
    """Those of `temperature`, `topP`, `stop` and `maxOutputTokens` that were set."""


class TurnAttempt(Struct, rename="camel", kw_only=True):
    """One call of the model."""

    attempt: int
    model: ModelUsed
    cause: str | UnsetType = UNSET
    """For a repeated one: the class of the failure before it, or `abandoned`."""
    started_at: Time
    ended_at: Time | None
    active_ms: int
    error_class: str | UnsetType = UNSET
    tokens: Tokens
    usage_estimated: bool
    cost_usd: float | None


class TurnAnswer(Struct, rename="camel", kw_only=True):
    message: TurnMessage
    finish_reason: str | None
    problem: str | UnsetType = UNSET
    """How the answer violates the output schema."""
    metadata: dict[str, str]
    """What the provider reported about it."""


class Turn(Struct, rename="camel", kw_only=True):
    """A turn, with all attempts at it."""

    run_id: str
    turn: int
    """Counted from 0, as in events."""
    last_turn: int
    request: TurnRequest
    attempts: list[TurnAttempt]
    answer: TurnAnswer | None
    """None if no attempt has completed the turn."""
    tokens: Tokens
    usage_estimated: bool
    cost_usd: float | None


def turn_message(message: Message) -> TurnMessage:
    """Returns a message as the protocol shows it."""
    match message:
        case System():
            return TurnMessage(role="system", text=message.content)
        case User():
            return TurnMessage(
                role="user",
                text=message.text,
                attachments=attachment_infos(message.parts),
                injected=True if message.injected else UNSET,
            )
        case Assistant():
            return _assistant(message, [_call(call, call.args.encode(errors="replace")) for call in message.calls])
        case _:
            return TurnMessage(role="tool", results=[_result(one) for one in message.results])


def answer_message(
    message: Assistant, args: Sequence[bytes], results: Mapping[str, tuple[How, ToolResult]]
) -> TurnMessage:
    """Returns the model's answer with the final arguments and the results of its calls."""
    calls = [_call(call, given) for call, given in zip(message.calls, args, strict=True)]
    for one in calls:
        one.how = None
        if one.tool_use_id in results:
            one.how, result = results[one.tool_use_id]
            one.ok, one.result = not result.is_error, joined_text(result.parts)
    return _assistant(message, calls)


def _assistant(message: Assistant, calls: list[TurnCall]) -> TurnMessage:
    thinking = "".join([part.text for part in message.parts if isinstance(part, Thinking)])
    provided = [part for part in message.parts if isinstance(part, ProviderCall)]
    return TurnMessage(
        role="assistant",
        text=message.text or UNSET,
        thinking=thinking or UNSET,
        calls=calls or UNSET,
        provider_calls=[TurnCall(tool_use_id=one.id, name=one.name, args=_input(one)) for one in provided] or UNSET,
    )


def turn_tools(ref: ToolRef) -> list[TurnTool]:
    """Returns the tools of a reference, as far as the plan defines them."""
    kind = str(ref.__struct_config__.tag)
    match ref:
        case LocalRef():
            parameters = UNSET if ref.parameters is UNSET else json_or_text(bytes(ref.parameters))
            return [TurnTool(kind=kind, name=ref.name, description=ref.description, parameters=parameters)]
        case A2ALocalRef():
            return [TurnTool(kind=kind, name=ref.name, description=ref.description or UNSET)]
        case McpLocalRef():
            return [TurnTool(kind=kind, name=f"{ref.server}_{one.name}", **_of_entry(one.raw)) for one in ref.tools]
        case A2ARef():
            url = redact_url(ref.card_url)
            return [TurnTool(kind=kind, name=ref.name, description=ref.description or UNSET, url=url)]
        case McpRef():
            names = [f"{ref.name}_{name}" for name in ref.tool_filter] if ref.tool_filter else [f"{ref.name}_*"]
            return [TurnTool(kind=kind, name=name, url=redact_url(ref.url)) for name in names]
        case StoredRef():
            return [TurnTool(kind=kind, name=ref.id)]
        case _:
            return [TurnTool(kind=kind, name=ref.name)]


def _of_entry(raw: Raw) -> dict[str, Any]:
    entry = decode(raw)
    found = {"description": entry.get("description"), "parameters": entry.get("inputSchema") or entry.get("parameters")}
    return {name: value for name, value in found.items() if value}


def _input(call: ProviderCall) -> Any:
    return {} if call.input is UNSET else json_or_text(bytes(call.input))


def _call(call: ToolCall, args: bytes) -> TurnCall:
    return TurnCall(tool_use_id=call.id, name=call.name, args=json_or_text(args))


def _result(one: ToolResult) -> TurnResult:
    return TurnResult(
        tool_use_id=one.id,
        name=one.name,
        ok=not one.is_error,
        text=joined_text(one.parts),
        attachments=attachment_infos(one.parts),
    )


def json_or_text(data: bytes) -> Any:
    """Returns the value of a JSON text; other text as it is."""
    try:
        return decode(data)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode(errors="replace")
