"""Keeps calls and their results together, whatever was left out of a request."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from weftline.messages import Assistant, Message, ToolCall, ToolResults

logger = logging.getLogger(__name__)


def repaired(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages without calls that lack a result and results that lack a call: providers refuse either.

    The results of a call are in the message after it.
    """
    kept: list[Message] = []
    dropped = 0
    for index, message in enumerate(messages):
        if isinstance(message, Assistant):
            following = messages[index + 1] if index + 1 < len(messages) else None
            answered = {one.id for one in following.results} if isinstance(following, ToolResults) else set[str]()
            lost = [call for call in message.calls if call.id not in answered]
            if lost:
                dropped += len(lost)
                parts = tuple(
                    [part for part in message.parts if not (isinstance(part, ToolCall) and part.id not in answered)]
                )
                if not parts:
                    continue
                message = replace(message, parts=parts)
        elif isinstance(message, ToolResults):
            before = kept[-1] if kept else None
            asked = {call.id for call in before.calls} if isinstance(before, Assistant) else set[str]()
            found = tuple([one for one in message.results if one.id in asked])
            dropped += len(message.results) - len(found)
            if not found:
                continue
            message = replace(message, results=found)
        kept.append(message)
    if dropped:
        logger.warning("%d calls or results without their other half were left out of a request", dropped)
    return kept
