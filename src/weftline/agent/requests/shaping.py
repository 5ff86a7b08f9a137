"""Makes the request that is sent from the one that the log describes. The changes are not recorded."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from weftline.agent import hooks as points
from weftline.agent.behavior import decayed, level_of
from weftline.agent.context import RunContext
from weftline.agent.hooking.calling import Hooks
from weftline.agent.requests.shortening import recent_turns, tail_compacted, without_stale_reads
from weftline.agent.running.frame import Frame
from weftline.agent.skills.activation import SkillActivations, stored_contents
from weftline.messages import Assistant, Message, ToolCall, ToolResults
from weftline.providers.base import ModelRequest

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


class RequestShaper:
    """Applies hooks on instructions and messages, repair of pairs, compaction, decay, hooks on settings, and wire
    names.

    They are applied in this order. Hooks see tools under their own names; only the final request has the model's names.
    """

    def __init__(self, frame: Frame, hooks: Hooks, context: RunContext[Any]) -> None:
        self._frame = frame
        self._hooks = hooks
        self._context = context

    async def shaped(
        self, request: ModelRequest, *, turn: int, attempt: int, memory: Mapping[str, Any]
    ) -> ModelRequest:
        """Returns the request to send. Raises `HookFailed` if a hook with `fail_closed` fails."""
        hooks, context, frame = self._hooks, self._context, self._frame
        own = request.messages
        if points.SystemRendered in hooks:
            rendered = points.SystemRendered(turn, request.system or "")
            await hooks.shape(rendered, context)
            request = replace(request, system=rendered.system or None)
        if points.RowsLoaded in hooks or points.ContextBuilt in hooks:
            loaded = points.RowsLoaded(turn, tuple(request.messages))
            await hooks.shape(loaded, context)
            built = points.ContextBuilt(turn, loaded.messages)
            await hooks.shape(built, context)
            request = _with_messages(request, repaired(built.messages))
        request = _with_messages(request, self._shortened(request.messages, memory))
        request = self._decayed(request, turn)
        if not frame.behavior.cache:
            request = replace(request, cache=False)
        offered = frame.disclosure.offered(request.tools, memory)
        if offered is not request.tools:
            request = replace(request, tools=offered)
        if points.BeforeModel in hooks:
            request = await self._with_settings(request, turn, attempt)
        return frame.aliases.sent(request, whole=request.messages is own)

    def _shortened(self, messages: Sequence[Message], memory: Mapping[str, Any]) -> Sequence[Message]:
        behavior = self._frame.behavior
        if behavior.keep_recent_turns is not None:
            messages = recent_turns(messages, turns=behavior.keep_recent_turns)
        if behavior.elide_stale_reads:
            messages = without_stale_reads(messages)
        if behavior.compact_strategy == "tail":
            messages = tail_compacted(
                messages,
                threshold_bytes=behavior.compact_threshold_bytes or 0,
                keep_turns=behavior.compact_keep_turns or 0,
                keep=self.active_contents(messages, memory),
            )
        return messages

    def active_contents(self, messages: Sequence[Message], memory: Mapping[str, Any]) -> set[str]:
        """Returns the ids of calls whose results are the contents of active skills. These stay whole."""
        if not self._frame.skills:
            return set()
        active = set(SkillActivations(dict(memory)).names)
        return {one.call_id for one in stored_contents(messages) if one.name in active}

    def _decayed(self, request: ModelRequest, turn: int) -> ModelRequest:
        behavior = self._frame.behavior
        tokens, decay = behavior.reasoning_budget_tokens, behavior.thinking_decay
        if tokens is not None:
            if decay is not None:
                tokens = decayed(decay, turn=turn + 1, base=tokens)
            return replace(request, reasoning=level_of(tokens), reasoning_budget_tokens=tokens or None)
        if decay is None or not request.reasoning:
            return request
        return replace(request, reasoning=decayed(decay, turn=turn + 1, base=request.reasoning))

    async def _with_settings(self, request: ModelRequest, turn: int, attempt: int) -> ModelRequest:
        point = points.BeforeModel(
            turn,
            attempt,
            request.model,
            tuple(request.messages),
            request.system,
            request.reasoning,
            request.max_output_tokens,
            request.temperature,
            request.top_p,
            tuple(request.stop),
            tuple([tool.name for tool in request.tools]),
            request.tool_choice,
            request.parallel_tool_calls,
        )
        await self._hooks.shape(point, self._context)
        return replace(
            request,
            reasoning=point.reasoning,
            # The token budget belongs to the level: if a hook changes the level, it no longer applies.
            reasoning_budget_tokens=request.reasoning_budget_tokens if point.reasoning == request.reasoning else None,
            max_output_tokens=point.max_output_tokens,
            temperature=point.temperature,
            top_p=point.top_p,
            stop=tuple(point.stop),
            tools=[tool for tool in request.tools if tool.name in point.tools],
            tool_choice=point.tool_choice,
            parallel_tool_calls=point.parallel_tool_calls,
        )


def _with_messages(request: ModelRequest, messages: Sequence[Message]) -> ModelRequest:
    """Replaces the messages, and drops what a provider has cached for the run's own list of messages."""
    return request if messages is request.messages else replace(request, messages=messages, native=[])
