"""Reminders: what a model reads with a single request and what is not stored.

They are in no message of the log and in no event. Some follow the results of a turn: what its tools want to be
remembered, and hints about the calls that failed. Others come with some of the run's requests, and were given by its
caller or its tools.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from weftline import prompts
from weftline.messages import Message, ToolResults, User
from weftline.providers.base import ModelRequest
from weftline.reminders import Reminder, due
from weftline.runtime.conversation import Conversation
from weftline.runtime.live import WorkingSet
from weftline.runtime.tool_calls.toolbox import EMPTY, Toolbox
from weftline.tools.base import Paging


def with_reminders(request: ModelRequest, work: WorkingSet, *, turn: int) -> ModelRequest:
    """The request with its reminders; unchanged if there are none."""
    conversation, toolbox = work.conversation, work.toolbox or EMPTY
    given, memory = work.plan.reminders, conversation.shared.values
    if (given or memory) and (own := due(given, memory, turn=turn)):
        request = _with_run_reminders(request, own)
    if not toolbox.reminds and not conversation.turn.hints and not conversation.turn.bounds:
        return request
    texts = _after_results(conversation, toolbox)
    if not texts:
        return request
    return _with_message(request, _joined(texts), at=len(request.messages))


def _with_run_reminders(request: ModelRequest, reminders: Sequence[Reminder]) -> ModelRequest:
    """Adds the run's own reminders, at the head of the instructions or beside the last user message."""
    first = [one.text for one in reminders if one.attachment == "run_start"]
    if first:
        text = _joined(first)
        request = replace(request, system=f"{text}\n\n{request.system}" if request.system else text)
    with_user = [one.text for one in reminders if one.attachment == "user_turn"]
    return _with_message(request, _joined(with_user), at=_place(request.messages)) if with_user else request


def _place(messages: Sequence[Message]) -> int:
    """Where a reminder is inserted: before the last user message, or after the last results if these are newer."""
    for at in range(len(messages) - 1, -1, -1):
        if isinstance(messages[at], ToolResults):
            return at + 1
        if isinstance(messages[at], User):
            return at
    return len(messages)


def _joined(texts: Sequence[str]) -> str:
    return "\n".join([prompts.failure.reminder(text) for text in texts])


def _with_message(request: ModelRequest, text: str, *, at: int) -> ModelRequest:
    messages = [*request.messages[:at], User.of(text, injected=True), *request.messages[at:]]
    # The provider appends what it encodes to its list, which is the conversation's: a reminder must not stay there.
    return replace(request, messages=messages, native=list(request.native[:at]))


def _after_results(conversation: Conversation, toolbox: Toolbox) -> list[str]:
    """The reminders that follow results, in the order of the calls of the latest turn."""
    texts: list[str] = []
    for index, result in sorted(conversation.turn.results.items()):
        tool = toolbox.get(result.name)
        if tool is not None and not result.is_error and (text := tool.traits.reminder):
            texts.append(prompts.failure.after_result(result.name, text))
        if (hint := conversation.turn.hints.get(index)) is not None:
            texts.append(prompts.failure.after_failure(hint))
        if (bounds := conversation.turn.bounds.get(index)) is not None:
            paging = None if tool is None else tool.traits.bounded
            cursor = paging.cursor if isinstance(paging, Paging) else ""
            texts.append(prompts.failure.after_truncated(result.name, bounds, cursor=cursor))
    return texts
