"""The conversation of a run, built from its entries: what the next model request is made of.

The same function builds it live, entry by entry, and again from the log after a restart or a park, so both give the
same messages. Messages are only ever added at the end; `native` keeps what a provider encoded of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from weftline.kernel import bodies
from weftline.kernel.entries import (
    KIND,
    CallClosed,
    Fact,
    FinalForced,
    LoopDetected,
    MessageQueued,
    MessagesTaken,
    OutputRejected,
    TurnCompleted,
    decode_fact,
)
from weftline.messages import Assistant, Image, Message, Text, ToolResult, ToolResults, User, UserPart
from weftline.store.base import EntryRow

KINDS: tuple[str, ...] = tuple(
    KIND[cls]
    for cls in (TurnCompleted, CallClosed, LoopDetected, FinalForced, MessageQueued, MessagesTaken, OutputRejected)
)
"""The entries that a conversation is built from, besides the spec of `run.created`."""

_BYTES_PER_TOKEN = 4


class Transcript:
    def __init__(self, messages: Iterable[Message]) -> None:
        self.messages: list[Message] = list(messages)
        self.native: list[bytes | None] = []
        self.native_for = ""
        """The model that `native` was encoded for."""
        self._blind: list[Message] = []
        self.call_ids: set[str] = set()
        self.size = sum(len(bodies.encode(message)) for message in self.messages)
        self._results: list[tuple[int, ToolResult]] = []
        self._open = 0
        self._queued: dict[str, User] = {}

    @property
    def last_text(self) -> str:
        """The text of the newest assistant message."""
        last = self.last_answer
        return last.text if last is not None else ""

    @property
    def last_answer(self) -> Assistant | None:
        for message in reversed(self.messages):
            if isinstance(message, Assistant):
                return message
        return None

    @property
    def estimate(self) -> int:
        """A rough count of the tokens of the whole conversation."""
        return self.size // _BYTES_PER_TOKEN

    def shown_to(self, *, vision: bool | None) -> list[Message]:
        """The messages for a model; one that is known to see nothing reads in words that there was an image."""
        if vision is not False:
            return self.messages
        self._blind += [_without_images(message) for message in self.messages[len(self._blind) :]]
        return self._blind

    def replay(self, rows: Sequence[EntryRow]) -> None:
        for row in rows:
            if row[2] in KINDS:
                self.apply(decode_fact.decode(row[3]), row[4])

    def apply(self, head: Fact, body: bytes, message: Assistant | None = None) -> None:
        """Adds what an entry means for the conversation; `message` spares decoding what was just encoded."""
        match head:
            case TurnCompleted():
                answer = message or bodies.decode_message(body)
                assert isinstance(answer, Assistant)
                self._open = len(head.calls)
                self._results = []
                self.call_ids.update(call.id for call in head.calls)
                self._add(answer, len(body))
            case CallClosed():
                parts = bodies.decode_closed(body).parts
                self._results.append((head.index, ToolResult(head.id, head.name, parts, head.is_error)))
                self.size += len(body)
                if len(self._results) == self._open:
                    ordered = sorted(self._results, key=lambda result: result[0])
                    self._add(ToolResults(tuple(result for _, result in ordered)), 0)
            case LoopDetected() | FinalForced() | OutputRejected():
                text = bodies.decode_text(body).text if body else ""
                if text:
                    self._add(User.of(text, injected=True), len(text))
            case MessageQueued():
                user = bodies.decode_message(body)
                assert isinstance(user, User)
                self._queued[head.id] = user
            case MessagesTaken():
                for identity in head.ids:
                    user = self._queued.pop(identity, None)
                    if user is not None:
                        self._add(user, len(user.text))
            case _:
                pass  # not part of the conversation

    def _add(self, message: Message, size: int) -> None:
        self.messages.append(message)
        self.size += size


def _without_images(message: Message) -> Message:
    match message:
        case User():
            return replace(message, parts=_in_words(message.parts))
        case ToolResults():
            return ToolResults(tuple(replace(result, parts=_in_words(result.parts)) for result in message.results))
        case _:
            return message


def _in_words(parts: tuple[UserPart, ...]) -> tuple[UserPart, ...]:
    return tuple(
        Text(f"[An image ({part.media_type}) that this model cannot see.]") if isinstance(part, Image) else part
        for part in parts
    )
