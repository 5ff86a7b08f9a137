"""The conversation as models read it: its messages, with a summary in place of older ones, and with their blobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from weftline import prompts
from weftline.failure import Bounds, preview_of
from weftline.kernel.bodies import ClosedBody, SummaryBody
from weftline.kernel.context import ContextCompacted
from weftline.messages import Image, Message, Text, ToolResults, User, UserPart
from weftline.providers.calls import warn_unread
from weftline.runtime.model_calls.cutting import Cut, with_summary
from weftline.text.canonical import canonical_value


def blobs_of(messages: Iterable[Message]) -> set[str]:
    """The blobs that messages refer to."""
    users = [message for message in messages if isinstance(message, User)]
    return {part.blob for user in users for part in user.parts if not isinstance(part, Text) and part.blob}


def with_parts(message: Message, change: Callable[[UserPart], UserPart]) -> Message:
    """The message with a function applied to each part of a user's message or a tool's result."""
    match message:
        case User():
            return replace(message, parts=_each(message.parts, change))
        case ToolResults():
            return ToolResults(
                tuple([replace(result, parts=_each(result.parts, change)) for result in message.results])
            )
        case _:
            return message


def _each(parts: tuple[UserPart, ...], change: Callable[[UserPart], UserPart]) -> tuple[UserPart, ...]:
    return tuple([change(part) for part in parts])


REASON = "size_limit"


def parts_within(limit_bytes: int | None, closed: ClosedBody) -> tuple[UserPart, ...]:
    """The result of a successful call, as the model reads it: one object replaces texts beyond the limit."""
    parts = closed.parts
    if limit_bytes is None:
        return parts
    texts = [part.text for part in parts if isinstance(part, Text)]
    if sum([len(text.encode()) for text in texts]) <= limit_bytes:
        return parts
    fields: dict[str, Any] = {"omitted": True, "reason": REASON}
    if preview := preview_of("\n".join(texts)):
        fields["preview"] = preview
    if closed.bounds is not None:
        fields["bounds"] = _bounds(closed.bounds)
    return Text(canonical_value(fields).decode()), *[part for part in parts if not isinstance(part, Text)]


def _bounds(bounds: Bounds) -> dict[str, Any]:
    fields: dict[str, Any] = {"returned": bounds.returned, "truncated": bounds.truncated}
    more = {
        "total": bounds.total,
        "next_cursor": bounds.next_cursor,
        "refinement_hint": bounds.refinement_hint or None,
    }
    return fields | {name: value for name, value in more.items() if value is not None}


class ModelView(Struct, eq=False, gc=False):
    messages: list[Message] = []
    """Those of the conversation: the same list, which grows."""
    compacted: tuple[ContextCompacted, SummaryBody] | None = None
    """The summary in force."""
    contents: dict[str, str] = {}
    """The contents of the blobs that messages refer to, in base64, by id."""
    _native: dict[str, list[bytes | None]] = {}
    """Each message as encoded for the model that was called last, by that model."""
    _visible: list[Message] | None = None
    """The messages with the summary."""
    _changed: dict[bool, list[Message]] = {}
    """The messages with their blobs filled in, by whether notes replace images."""

    @property
    def visible(self) -> list[Message]:
        """The messages that a request is built from. The same list, which grows, until a summary is made or undone."""
        if self.compacted is None:
            return self.messages
        if self._visible is None:
            head, body = self.compacted
            self._visible = with_summary(self.messages, head.upto, body)
        return self._visible

    @property
    def cut(self) -> Cut | None:
        """Which messages the current summary replaces."""
        return None if self.compacted is None else Cut(self.compacted[0].upto, self.compacted[1].kept)

    def for_model(self, *, vision: bool | None) -> list[Message]:
        """The messages for a model. If the model is known to have no vision, a note replaces each image."""
        in_words = vision is False
        if not in_words and not self.contents:
            return self.visible
        changed = self._changed.setdefault(in_words, [])
        change = self._in_words if in_words else self._filled
        changed += [with_parts(message, change) for message in self.visible[len(changed) :]]
        return changed

    def native(self, model: str) -> list[bytes | None]:
        """The messages encoded for a model so far; its provider adds those that are missing."""
        if model not in self._native:
            self._native = {model: []}
        return self._native[model]

    def add(self, message: Message) -> None:
        """Adds a message that was added to the conversation."""
        if self._visible is not None:
            self._visible.append(message)

    def compact(self, compacted: tuple[ContextCompacted, SummaryBody] | None) -> None:
        """Puts a summary in force, or none."""
        self.compacted = compacted
        self.reset()

    def reset(self) -> None:
        """Creates new lists: callers that keep something per list of messages rely on the list only growing."""
        self._visible = None
        self._native = {}
        self._changed = {}

    def _filled(self, part: UserPart) -> UserPart:
        if isinstance(part, Text) or part.blob is None:
            return part
        content = self.contents.get(part.blob)
        return Text(prompts.models.lost_attachment(part.media_type)) if not content else replace(part, data=content)

    def _in_words(self, part: UserPart) -> UserPart:
        if not isinstance(part, Image):
            return self._filled(part)
        warn_unread(part.media_type)
        return Text(prompts.models.unseen_image(part.media_type))
