"""Reminders: what a model reads with one request and that nobody keeps.

They stand in no message of the log and in no event. After the results of a turn they say what its tools want to be
remembered, and what would help after the calls that failed.
"""

from __future__ import annotations

from msgspec.structs import replace

from weftline import prompts_failure
from weftline.messages import User
from weftline.providers.base import ModelRequest
from weftline.runtime.conversation import Conversation
from weftline.runtime.toolbox import Toolbox
from weftline.tools.base import reminder_of
from weftline.tools.bounding import Paging, bounded_of


def with_reminders(request: ModelRequest, conversation: Conversation, toolbox: Toolbox) -> ModelRequest:
    """The request with what there is to remind of; the same if there is nothing."""
    if not toolbox.reminds and not conversation.hints and not conversation.bounds:
        return request
    texts = _after_results(conversation, toolbox)
    if not texts:
        return request
    said = "\n".join([prompts_failure.reminder(text) for text in texts])
    messages = [*request.messages, User.of(said, injected=True)]
    # The provider adds what it encodes to its list, which is the conversation's: a reminder is not to stay there.
    return replace(request, messages=messages, native=list(request.native))


def _after_results(conversation: Conversation, toolbox: Toolbox) -> list[str]:
    """In the order of the calls of the latest turn."""
    texts: list[str] = []
    for index, result in sorted(conversation.results.items()):
        tool = toolbox.get(result.name)
        if tool is not None and not result.is_error and (text := reminder_of(tool)):
            texts.append(prompts_failure.after_result(result.name, text))
        if (hint := conversation.hints.get(index)) is not None:
            texts.append(prompts_failure.after_failure(hint))
        if (bounds := conversation.bounds.get(index)) is not None:
            paging = None if tool is None else bounded_of(tool)
            cursor = paging.cursor if isinstance(paging, Paging) else ""
            texts.append(prompts_failure.after_truncated(result.name, bounds, cursor=cursor))
    return texts
