"""Makes the request that is sent from the one that the log describes. The changes are not recorded.

Parts of the conversation may be left out of a request; the stored one stays whole.
"""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from weftline import prompts
from weftline.agent import hooks as points
from weftline.agent.behavior import Behavior, decayed, level_of
from weftline.agent.context import RunContext
from weftline.agent.hooking.calling import Hooks
from weftline.agent.running.frame import Frame
from weftline.agent.skills.activation import SkillActivations, stored_contents
from weftline.messages import Assistant, Message, System, Text, ToolCall, ToolResult, ToolResults, User, joined_text
from weftline.providers.base import ModelRequest
from weftline.runtime.agent_code.code import PendingCall
from weftline.tools.base import ToolOutput
from weftline.tools.results import output_bytes

PREVIEW_BYTES = 2048
_log = logging.getLogger(__name__)


class LargeResults:
    """Writes large results to files, if the behavior has both a threshold and a directory."""

    def __init__(self, behavior: Behavior, *, run_id: str, keep: frozenset[str]) -> None:
        """The results of the tools in `keep`, and of those that the behavior excludes, stay whole."""
        self._threshold = behavior.persist_threshold_bytes
        self._directory = None if behavior.persist_dir is None else Path(behavior.persist_dir)
        self._whole = keep | frozenset(behavior.persist_exclude_tools or ())
        self._run_id = run_id

    async def stored(self, call: PendingCall, output: ToolOutput) -> ToolOutput:
        """Returns the output, or a stub if it was too large. An output that cannot be written stays as it is."""
        if self._threshold is None or self._directory is None or call.name in self._whole:
            return output
        size = output_bytes(output.parts)
        if size <= self._threshold:
            return output
        only_text = all(isinstance(part, Text) for part in output.parts)
        text = joined_text(output.parts)
        data = text.encode(errors="replace") if only_text else msgspec.json.encode(output.parts)
        # Named by run and call, so that a call that is repeated after a crash writes the same file.
        name = f"{_safe(self._run_id)}-{call.turn}.{call.index}-{_safe(call.name)}.{'txt' if only_text else 'json'}"
        path = self._directory.absolute() / name
        try:
            await asyncio.to_thread(_write, path, data)
        except OSError as error:
            _log.error("run %s: a large result of %s could not be written: %s", self._run_id, call.name, error)
            return output
        preview = text.encode(errors="replace")[:PREVIEW_BYTES].decode(errors="ignore")
        stub = prompts.behavior.persisted(call.name, size=size, path=str(path), preview=preview)
        return replace(output, parts=(Text(stub),))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".") or "_"


READS: Final = frozenset({"read_file"})
CHANGES: Final = frozenset({"write_file", "edit", "multi_edit"})
_PATH: Final = "path"


def tail_compacted(
    messages: Sequence[Message], *, threshold_bytes: int, keep_turns: int, keep: Collection[str] = ()
) -> Sequence[Message]:
    """Replaces results older than the last `keep_turns` turns with stubs, if all results together are too large.

    `keep` has the ids of calls whose results stay. Below the threshold, the same list is returned.
    """
    size = sum([output_bytes(one.parts) for one in _results(messages)])
    if size <= threshold_bytes:
        return messages
    first = _start_of_turns(messages, keep_turns)

    def stub(result: ToolResult) -> str | None:
        return None if result.id in keep else prompts.behavior.compacted(result.name, output_bytes(result.parts))

    return [*_with_stubs(messages[:first], stub), *messages[first:]]


def without_stale_reads(messages: Sequence[Message]) -> Sequence[Message]:
    """Replaces what was read from files with stubs if a later call has changed the file."""
    stale = _stale(messages)
    if not stale:
        return messages
    return _with_stubs(
        messages, lambda result: prompts.behavior.stale_read(stale[result.id]) if result.id in stale else None
    )


def keep_recent(messages: Sequence[Message], *, turns: int) -> list[Message]:
    """Returns the last `turns` turns, each a model's message with its results, after the latest user message before
    them.

    @hook(ContextBuilt)
    def shorter(request: ContextBuilt) -> None:
        request.messages = keep_recent(request.messages, turns=20)
    """
    if turns < 0:
        raise ValueError(f"turns must be 0 or more, not {turns}")
    first = _start_of_turns(messages, turns)
    if first == 0:
        return list(messages)
    asked = next((one for one in reversed(messages[:first]) if isinstance(one, User)), None)
    return [*([] if asked is None else [asked]), *messages[first:]]


def recent_turns(messages: Sequence[Message], *, turns: int) -> Sequence[Message]:
    """Returns the leading system messages and the last `turns` turns; the same list if there are no more turns.

    A turn begins with a user message. If there is only one, it is kept as the task of the run, and each answer of the
    model begins a turn. Calls and their results are never separated.
    """
    lead = next((index for index, one in enumerate(messages) if not isinstance(one, System)), len(messages))
    own = [index for index, one in enumerate(messages) if isinstance(one, User) and not one.injected]
    starts = own if len(own) > 1 else [index for index, one in enumerate(messages) if isinstance(one, Assistant)]
    if len(starts) <= turns:
        return messages
    asked = [messages[index] for index in own if len(own) == 1 and lead <= index < starts[-turns]]
    return [*messages[:lead], *asked, *messages[starts[-turns] :]]


def _start_of_turns(messages: Sequence[Message], turns: int) -> int:
    """Returns the index at which the last `turns` turns begin."""
    starts = [index for index, message in enumerate(messages) if isinstance(message, Assistant)]
    if turns >= len(starts):
        return 0
    return starts[-turns] if turns else _after_results(messages)


def _after_results(messages: Sequence[Message]) -> int:
    """Returns the index after the last turn. Later user messages belong to no turn."""
    turns = [index for index, message in enumerate(messages) if not isinstance(message, User)]
    return turns[-1] + 1 if turns else 0


def _results(messages: Sequence[Message]) -> list[ToolResult]:
    return [one for message in messages if isinstance(message, ToolResults) for one in message.results]


def _with_stubs(messages: Sequence[Message], stub: Callable[[ToolResult], str | None]) -> list[Message]:
    return [_stubbed(message, stub) if isinstance(message, ToolResults) else message for message in messages]


def _stubbed(message: ToolResults, stub: Callable[[ToolResult], str | None]) -> ToolResults:
    results: list[ToolResult] = []
    for result in message.results:
        text = stub(result)
        # A stub that is longer than the result saves nothing.
        shorter = text is not None and len(text.encode()) < output_bytes(result.parts)
        results.append(replace(result, parts=(Text(text or ""),)) if shorter else result)
    return ToolResults(tuple(results))


def _stale(messages: Sequence[Message]) -> dict[str, str]:
    """Returns the reads of files that were changed later: their paths by call id."""
    done = {one.id for one in _results(messages) if not one.is_error}
    open_reads: dict[str, list[str]] = {}
    stale: dict[str, str] = {}
    for message in messages:
        if not isinstance(message, Assistant):
            continue
        for call in message.calls:
            if call.id not in done or call.name not in READS | CHANGES:
                continue
            path = _path_of(call.args)
            if path is None:
                continue
            if call.name in READS:
                open_reads.setdefault(path, []).append(call.id)
            else:
                stale.update(dict.fromkeys(open_reads.pop(path, ()), path))
    return stale


def _path_of(args: str) -> str | None:
    try:
        value: Any = msgspec.json.decode(args)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    path = cast("dict[str, object]", value).get(_PATH) if isinstance(value, dict) else None
    return posixpath.normpath(path) if isinstance(path, str) and path else None


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
            given = tuple(request.messages)
            loaded = points.RowsLoaded(turn, given)
            await hooks.shape(loaded, context)
            built = points.ContextBuilt(turn, loaded.messages)
            await hooks.shape(built, context)
            if built.messages is not given:
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
