"""The parts of messages from users and tools other than text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from weftline.messages import Message, Text, ToolResults, User, UserPart


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
