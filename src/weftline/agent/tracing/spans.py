"""Projects a run's log to spans: the run, its turns, their model calls and tool calls, and the runs below.

Names and attributes follow OpenTelemetry's conventions for generative AI, as of 1.41, with our own ids added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.json import encode

from weftline.kernel import bodies
from weftline.kernel.bodies import CreatedBody
from weftline.kernel.entries import (
    KIND,
    AttemptFailed,
    AttemptStarted,
    CallClosed,
    CallOpened,
    CallStarted,
    CancelRequested,
    Fact,
    ModelRef,
    RunCreated,
    RunEnded,
    TurnCompleted,
    decode_fact,
)
from weftline.messages import Assistant, Message, System, Text, ToolCall, ToolResults, Usage, User, joined_text
from weftline.plan import decode_content
from weftline.store.rows import Item
from weftline.tools.results import output_bytes
from weftline.trace_context import span_id


def input_messages(created: CreatedBody) -> dict[str, str]:
    """Returns the attributes of a run's instructions and input."""
    plan = decode_content(created.plan)
    found = {"gen_ai.input.messages": _json([_message(message) for message in plan.messages])}
    if plan.system:
        found["gen_ai.system_instructions"] = _json([_text(plan.system)])
    return found


def output_messages(message: Message) -> dict[str, str]:
    """Returns the attribute of a model call's answer."""
    return {"gen_ai.output.messages": _json([_message(message)])}


def final_answer(text: str) -> dict[str, str]:
    """Returns the attribute of a run's answer."""
    return output_messages(Assistant((Text(text),)))


def _message(message: Message) -> dict[str, Any]:
    match message:
        case System():
            return {"role": "system", "parts": [_text(message.content)]}
        case User():
            return {"role": "user", "parts": [_text(message.text)]}
        case Assistant():
            texts = [_text(part.text) for part in message.parts if isinstance(part, Text)]
            return {"role": "assistant", "parts": [*texts, *[_call(call) for call in message.calls]]}
        case ToolResults():
            parts = [
                {"type": "tool_call_response", "id": one.id, "response": joined_text(one.parts)}
                for one in message.results
            ]
            return {"role": "tool", "parts": parts}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.args}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _json(value: list[dict[str, Any]]) -> str:
    return encode(value).decode()


Value: TypeAlias = str | int | float | tuple[str, ...]

KINDS = tuple(
    [
        KIND[fact]
        for fact in (
            RunCreated,
            AttemptStarted,
            AttemptFailed,
            TurnCompleted,
            CallOpened,
            CallStarted,
            CallClosed,
            CancelRequested,
            RunEnded,
        )
    ]
)
"""The kinds of facts that spans are built from."""

_PROVIDERS = {"google": "gcp.gemini", "bedrock": "aws.bedrock", "xai": "x_ai", "mistral": "mistral_ai"}
"""The conventions' names for providers, where they differ from ours."""


class Span(Struct, kw_only=True):
    """A span. Times are in microseconds since the epoch."""

    id: str
    """16 hexadecimal digits, derived from the log, so that every process computes the same."""
    name: str
    kind: Literal["internal", "client"] = "internal"
    start_us: int
    end_us: int | None = None
    attributes: dict[str, Value] = {}
    error: str | None = None
    """Why it failed, if it did: a class rather than a text."""
    inside: list[Span] = field(default_factory=lambda: list[Span]())
    child_id: str = ""
    """The run whose spans belong inside this one."""


def spans_of(run_id: str, facts: Sequence[Item], *, agent: str | None, content: bool = False) -> Span | None:
    """Returns the span of a run that has ended, from facts of these `KINDS`; None if its log is no longer complete.

    With `content`, spans include messages, arguments and results.
    """
    folded = _Spans(run_id, agent, content=content)
    for stored in facts:
        folded.take(decode_fact.decode(stored.head), stored)
    return folded.root


class _Spans:
    def __init__(self, run_id: str, agent: str | None, *, content: bool) -> None:
        self._content = content
        self._cancelled = False
        self.root: Span | None = None
        self._run_id = run_id
        self._agent = agent
        self._turn: Span | None = None
        self._model: Span | None = None
        self._calls: dict[int, Span] = {}
        """The calls of the current turn that have no result yet, by index."""
        self._unclosed = 0
        self._by_id: dict[str, Span] = {}
        """All calls of the current turn, by call id."""

    def _id(self, what: str) -> str:
        return span_id(self._run_id, what)

    def take(self, head: Fact, stored: Item) -> None:
        at = stored.at
        match head:
            case RunCreated():
                self._begin(at)
                if self._content and self.root is not None:
                    self.root.attributes |= input_messages(bodies.decode_created(stored.body))
            case AttemptStarted():
                self._ask(head, at)
            case AttemptFailed():
                self._answered(at, head.usage, error=None if head.reason == "cancelled" else head.cls)
            case TurnCompleted():
                if self._content and self._model is not None:
                    self._model.attributes |= output_messages(bodies.decode_turn(stored.body).message)
                self._answered(at, head.usage, finish=head.finish)
                self._unclosed = len(head.calls)
                if not head.calls:
                    self._end_turn(at)
            case CallOpened():
                self._open(head, at)
                if self._content and head.index in self._calls:
                    args = bytes(bodies.decode_opened(stored.body).args).decode()
                    self._calls[head.index].attributes["gen_ai.tool.call.arguments"] = args
            case CallStarted() if head.child and head.index in self._calls:
                self._calls[head.index].child_id = head.child
                self._calls[head.index].attributes["weftline.child_id"] = head.child
            case CallClosed():
                self._close(head, stored)
            case CancelRequested():
                self._cancelled = True
            case RunEnded():
                self._end(head, at)
                if self._content and self.root is not None and head.status == "succeeded":
                    self.root.attributes |= final_answer(bodies.decode_ended(stored.body).text)
            case _:
                pass

    def _begin(self, at: int) -> None:
        attributes: dict[str, Value] = {"gen_ai.operation.name": "invoke_agent", "weftline.run_id": self._run_id}
        if self._agent:
            attributes["gen_ai.agent.name"] = self._agent
        name = f"invoke_agent {self._agent or ''}".strip()
        self.root = Span(id=self._id("run"), name=name, start_us=at, attributes=attributes)

    def _ask(self, head: AttemptStarted, at: int) -> None:
        if self.root is None:
            return
        ids: dict[str, Value] = {"weftline.run_id": self._run_id, "weftline.turn_id": f"{self._run_id}.{head.turn}"}
        if self._turn is None:
            id = self._id(f"turn.{head.turn}")
            self._turn = Span(id=id, name=f"turn {head.turn}", start_us=at, attributes=dict(ids))
            self.root.inside.append(self._turn)
        operation: dict[str, Value] = {"gen_ai.operation.name": "chat", "weftline.attempt": head.attempt}
        self._model = Span(
            id=self._id(f"chat.{head.turn}.{head.attempt}"),
            name=f"chat {head.model.vendor_id}".strip(),
            kind="client",
            start_us=at,
            attributes={**operation, **_model(head.model), **ids},
        )
        self._turn.inside.append(self._model)

    def _answered(self, at: int, usage: Usage, *, finish: str | None = None, error: str | None = None) -> None:
        span, self._model = self._model, None
        if span is None:
            return
        span.end_us, span.error = at, error
        span.attributes.update(_usage(usage))
        if finish:
            span.attributes["gen_ai.response.finish_reasons"] = (finish,)

    def _open(self, head: CallOpened | CallClosed, at: int) -> None:
        if self._turn is None:
            return
        id, name = head.id, head.name
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": id,
            "weftline.run_id": self._run_id,
            "weftline.turn_id": self._turn.attributes["weftline.turn_id"],
            "weftline.call_id": id,
        }
        span = self._calls[head.index] = Span(
            id=self._id(f"call.{head.turn}.{head.index}"),
            name=f"execute_tool {name}",
            start_us=at,
            attributes=attributes,
        )
        above = self._by_id.get(head.parent, self._turn)
        above.inside.append(span)
        self._by_id[id] = span

    def _close(self, head: CallClosed, stored: Item) -> None:
        if head.index not in self._calls:  # it was refused before it was announced
            self._open(head, stored.at)
        span = self._calls.pop(head.index, None)
        if span is None:
            return
        # Cancelling a run is not a failure, and neither is what it cuts off.
        span.end_us, span.error = stored.at, head.how if head.is_error and not self._cancelled else None
        parts = bodies.decode_closed(stored.body).parts
        span.attributes["weftline.how"] = head.how
        span.attributes["weftline.output_bytes"] = output_bytes(parts)
        if self._content:
            span.attributes["gen_ai.tool.call.result"] = joined_text(parts)
        self._unclosed -= not head.parent
        if not self._calls and self._unclosed == 0:
            self._end_turn(stored.at)

    def _end_turn(self, at: int) -> None:
        if self._turn is not None:
            self._turn.end_us, self._turn = at, None
            self._calls = {}
            self._by_id = {}

    def _end(self, head: RunEnded, at: int) -> None:
        if self.root is None:
            return
        root = self.root
        root.end_us = at
        root.attributes |= {**_model(head.model), **_usage(head.usage)}
        root.attributes |= {"weftline.status": head.status, "weftline.turns": head.turns}
        if head.cost_nusd is not None:
            root.attributes["weftline.cost_usd"] = head.cost_nusd / 1_000_000_000
        if head.status == "failed":
            root.error = head.code or "failed"
            if self._turn is not None:
                self._turn.error = root.error


def _model(model: ModelRef) -> dict[str, Value]:
    found: dict[str, Value] = {}
    if model.provider:
        found["gen_ai.provider.name"] = _PROVIDERS.get(model.provider, model.provider)
    if model.vendor_id:
        found["gen_ai.request.model"] = model.vendor_id
    return found


def _usage(usage: Usage) -> dict[str, Value]:
    found: dict[str, Value] = {
        "gen_ai.usage.input_tokens": usage.input,
        "gen_ai.usage.output_tokens": usage.output,
    }
    more = {
        "gen_ai.usage.cache_read.input_tokens": usage.cached,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
    }
    return found | {name: count for name, count in more.items() if count}
