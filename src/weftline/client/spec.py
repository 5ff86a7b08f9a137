"""The options of a run, and the request bodies that they produce."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypedDict

import msgspec

from weftline.client.attachments import AttachmentLike, attachments_on_wire
from weftline.client.errors import InvalidSpec
from weftline.client.events import ClientEvent
from weftline.client.tools import ToolLike
from weftline.text.suggestions import did_you_mean

Reasoning: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh"] | int


class MessageOptions(TypedDict, total=False):
    """Options that may differ from run to run.

    Options that are left out are not sent; `output_schema`, `loop_detection`, `tool_budgets`, `budgets`, `policy`,
    `budget` and `awaits` are sent as they are given, including `False` and `{}`.
    """

    messages: Sequence[Mapping[str, Any]] | None
    attachments: Sequence[AttachmentLike] | None
    tools: Sequence[ToolLike] | None
    reasoning_level: Reasoning | None
    output_schema: Mapping[str, Any] | None
    output_type: Any
    loop_detection: Mapping[str, int] | Literal[False] | None
    tool_budgets: Mapping[str, Mapping[str, int]] | None
    budgets: Mapping[str, Any] | None
    policy: Mapping[str, Any] | None
    budget: Mapping[str, Any] | None
    awaits: Mapping[str, Any] | None
    on_deploy: Literal["adopt", "ask", "pin"] | None
    temperature: float | None
    top_p: float | None
    stop_sequences: Sequence[str] | None
    max_output_tokens: int | None
    metadata: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    turn_id: str | None
    run_id: str | None
    memo: Mapping[str, Any] | None
    search_attributes: Mapping[str, Any] | None
    task_queue: str | None
    retry_policy: Mapping[str, float] | None
    deadline_s: float | None
    lease_s: float | None
    idempotency_key: str | None
    on_event: Callable[[ClientEvent], object] | None


class SessionOptions(TypedDict, total=False):
    """The options of a session."""

    name: str | None
    agent_id: str | None
    system_prompt: str | None
    model_id: str | None
    tools: Sequence[ToolLike] | None
    reasoning_level: Reasoning | None
    output_schema: Mapping[str, Any] | None
    loop_detection: Mapping[str, int] | Literal[False] | None
    tool_budgets: Mapping[str, Mapping[str, int]] | None
    budgets: Mapping[str, Any] | None
    policy: Mapping[str, Any] | None
    budget: Mapping[str, Any] | None
    awaits: Mapping[str, Any] | None
    on_deploy: Literal["adopt", "ask", "pin"] | None
    temperature: float | None
    top_p: float | None
    stop_sequences: Sequence[str] | None
    max_output_tokens: int | None
    metadata: Mapping[str, str] | None
    labels: Mapping[str, str] | None


class RunOptions(MessageOptions, total=False):
    """The options of a run."""

    name: str | None
    agent_id: str | None
    system_prompt: str | None
    model_id: str | None


_WIRE = {
    "name": "name",
    "agent_id": "agentId",
    "system_prompt": "systemPrompt",
    "model_id": "modelId",
    "messages": "messages",
    "reasoning_level": "reasoningLevel",
    "output_schema": "outputSchema",
    "loop_detection": "loopDetection",
    "tool_budgets": "toolBudgets",
    "budgets": "budgets",
    "policy": "policy",
    "budget": "budget",
    "awaits": "awaits",
    "on_deploy": "onDeploy",
    "temperature": "temperature",
    "top_p": "topP",
    "stop_sequences": "stopSequences",
    "max_output_tokens": "maxOutputTokens",
    "metadata": "metadata",
    "labels": "labels",
    "turn_id": "turnId",
    "run_id": "runId",
    "memo": "memo",
    "search_attributes": "searchAttributes",
    "task_queue": "taskQueue",
    "retry_policy": "retryPolicy",
}
_LOCAL = frozenset({"attachments", "tools", "output_type", "deadline_s", "lease_s", "idempotency_key", "on_event"})


def check_lease(lease_s: float | None) -> None:
    if lease_s is not None and not 1 <= lease_s <= 600:
        raise InvalidSpec(f"lease_s must be 1 to 600 seconds, not {lease_s:g}")


def body_of(
    options: Mapping[str, Any],
    *,
    prompt: str | None = None,
    tools: list[dict[str, Any]] | None = None,
    asks: bool = True,
) -> bytes:
    """Returns the JSON of a request. `asks` is False for a session, which has no input."""
    unknown = options.keys() - _WIRE.keys() - _LOCAL
    if unknown:
        near = did_you_mean(min(unknown), [*_WIRE, *_LOCAL])
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}.{near}")
    body: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
    for name, wire in _WIRE.items():
        value = options.get(name)
        if value is not None:
            body[wire] = value
    if attributes := options.get("search_attributes"):
        body["searchAttributes"] = {
            name: {"datetime": value} if isinstance(value, datetime) else value for name, value in attributes.items()
        }
    check_lease(options.get("lease_s"))
    if asks and ("prompt" in body) == ("messages" in body):
        raise InvalidSpec("give either a prompt or messages")
    attachments = options.get("attachments")
    if attachments:
        body["attachments"] = attachments_on_wire(attachments)
    output_type = options.get("output_type")
    if output_type is not None:
        if "outputSchema" in body:
            raise InvalidSpec("give output_type or output_schema, not both")
        from weftline.client.output import schema_of

        body["outputSchema"] = schema_of(output_type)
    if tools is not None:
        body["tools"] = tools
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise InvalidSpec("an option contains an unpaired surrogate, which is not valid text") from error
    except (TypeError, ValueError) as error:
        raise InvalidSpec(f"an option has no JSON form: {error}") from error
