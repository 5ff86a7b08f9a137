"""What the runtime puts beside the kernel's facts, so that a log made here looks like one of a server."""

from __future__ import annotations

import json

from msgspec import Raw

from weftline import prompts
from weftline.kernel import bodies
from weftline.kernel.context import CompactionFailed, ContextCompacted
from weftline.kernel.control import CallUnclaimed
from weftline.kernel.entries import (
    AttemptFailed,
    AwaitOpened,
    CallAsked,
    CallClosed,
    CallOpened,
    ChildEnded,
    Fact,
    FinalForced,
    LoopDetected,
    MessageQueued,
    MessagesTaken,
    OutputRejected,
    ResultsOverBudget,
    RunCreated,
    RunEnded,
    TurnCompleted,
)
from weftline.messages import Assistant, AssistantPart, Text, ToolCall, User

PLAN = Raw(b'{"v":1,"model":"demo"}')
SENT = Raw(b'{"prompt": "Hello", "modelId": "demo"}')


class Content:
    """The bodies of one run's entries. It remembers the newest turn, as a driver does, and nothing else."""

    def __init__(self) -> None:
        self.turn = bodies.TurnBody(Assistant(()))
        self.args: list[bytes] = []

    def body(self, head: Fact, text: str) -> bytes:
        """Of an entry, `text` being what the kernel has to say in it, or what its content is about."""
        match head:
            case RunCreated():
                return bodies.encode(bodies.CreatedBody(PLAN, SENT))
            case TurnCompleted():
                return bodies.encode(self.turn)
            case CallAsked():
                return bodies.encode(bodies.AskedBody(bytes(self._args(head.index)).decode()))
            case AwaitOpened():
                return bodies.encode(bodies.AwaitBody("May it?", "c", "wire", self._args(head.index)))
            case CallOpened() | CallUnclaimed():
                peer = bodies.McpPeer("files", "read") if head.client == "mcp_local" else None
                return bodies.encode(bodies.OpenedBody(self._args(head.index), peer=peer))
            case CallClosed():
                read = text or self._invalid(head.index) or head.digest
                return bodies.encode(bodies.ClosedBody((Text(read),), self._args(head.index)))
            case AttemptFailed():
                return bodies.encode(bodies.FailedBody(f"The provider failed: {head.cls}.", "So far"))
            case LoopDetected() | FinalForced() | ResultsOverBudget():
                return bodies.encode(bodies.TextBody(text)) if text else b""
            case OutputRejected():
                return bodies.encode(bodies.TextBody(prompts.turns.answer_again(prompts.turns.ANSWER_INVALID)))
            case CompactionFailed():
                return bodies.encode(bodies.FailedBody(f"The summary failed: {head.cls}."))
            case ContextCompacted():
                return bodies.encode(bodies.SummaryBody("They met.", (0,), "demo"))
            case MessageQueued():
                return bodies.encode(User.of(f"Message {head.id}"))
            case MessagesTaken():
                return bodies.encode(bodies.TakenBody(tuple([f"Message {id}" for id in head.ids])))
            case ChildEnded():
                return bodies.encode(bodies.EndedBody(text=f"It has {head.status}."))
            case RunEnded():
                if head.status == "succeeded":
                    return bodies.encode(bodies.EndedBody(text=self.turn.message.text))
                if head.status == "cancelled":
                    return b"{}"
                partial = self.turn.message.text if head.code in ("truncation", "invalid_output") else None
                return bodies.encode(bodies.EndedBody("", text or f"It ended with {head.code}.", partial))
            case _:
                return b""

    def remember(self, head: TurnCompleted, text: str, args: list[dict[str, object]], final: list[bytes]) -> None:
        """The turn that a model has just completed: its words, its arguments as it wrote them and as they are final."""
        parts: list[AssistantPart] = [Text(text)] if text else []
        made: list[bodies.TurnCall] = []
        for call, given, one in zip(head.calls, args, final, strict=True):
            written = json.dumps(given)
            parts.append(ToolCall(call.id, call.name, written))
            invalid = prompts.calls.invalid_arguments(call.name, ["bad: not allowed"])
            made.append(bodies.turn_call(written, args=one, invalid=invalid if call.verdict == "invalid" else ""))
        self.turn = bodies.turn_body(Assistant(tuple(parts)), made)
        self.args = bodies.turn_args(self.turn)

    def remember_further(self, final: bytes) -> None:
        """The arguments of a call that another call asks for."""
        self.args.append(final)

    def _args(self, index: int) -> Raw:
        return Raw(self.args[index]) if index < len(self.args) else Raw(b"{}")

    def _invalid(self, index: int) -> str:
        return self.turn.calls[index].invalid if index < len(self.turn.calls) else ""
