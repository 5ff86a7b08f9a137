"""What a request leaves out of the conversation. The stored conversation stays whole, and so do calls and results."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from weftline import prompts
from weftline.messages import Assistant, Message, System, Text, ToolResult, ToolResults, User
from weftline.tools.results import output_bytes

READS: Final = frozenset({"read_file"})
CHANGES: Final = frozenset({"write_file", "edit", "multi_edit"})
_PATH: Final = "path"


def tail_compacted(
    messages: Sequence[Message], *, threshold_bytes: int, keep_turns: int, keep: Collection[str] = ()
) -> Sequence[Message]:
    """The messages with stubs in place of results older than the last `keep_turns` turns, if all are too large.

    `keep` has the ids of calls whose results stay. Below the threshold the very same messages are returned.
    """
    size = sum([output_bytes(one.parts) for one in _results(messages)])
    if size <= threshold_bytes:
        return messages
    first = _start_of_turns(messages, keep_turns)

    def stub(result: ToolResult) -> str | None:
        return None if result.id in keep else prompts.behavior.compacted(result.name, output_bytes(result.parts))

    return [*_with_stubs(messages[:first], stub), *messages[first:]]


def without_stale_reads(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with stubs in place of what was read from files that a later call has changed."""
    stale = _stale(messages)
    if not stale:
        return messages
    return _with_stubs(
        messages, lambda result: prompts.behavior.stale_read(stale[result.id]) if result.id in stale else None
    )


def keep_recent(messages: Sequence[Message], *, turns: int) -> list[Message]:
    """The last `turns` turns, each a model's message with its results, after the latest thing that was said to it.

    @hook(ContextBuilt)
    def shorter(request: ContextBuilt) -> None:
        request.messages = keep_recent(request.messages, turns=20)
    """
    if turns < 0:
        raise ValueError(f"turns must not be negative, not {turns}")
    first = _start_of_turns(messages, turns)
    if first == 0:
        return list(messages)
    asked = next((one for one in reversed(messages[:first]) if isinstance(one, User)), None)
    return [*([] if asked is None else [asked]), *messages[first:]]


def recent_turns(messages: Sequence[Message], *, turns: int) -> Sequence[Message]:
    """The leading system messages and the last `turns` turns; the very same messages if there are no more.

    A turn begins at what somebody said. If that is a single message, it stays, since it is what the run is about, and
    each answer of the model begins a turn. A call is never without its result, nor a result without its call.
    """
    lead = next((index for index, one in enumerate(messages) if not isinstance(one, System)), len(messages))
    own = [index for index, one in enumerate(messages) if isinstance(one, User) and not one.injected]
    starts = own if len(own) > 1 else [index for index, one in enumerate(messages) if isinstance(one, Assistant)]
    if len(starts) <= turns:
        return messages
    asked = [messages[index] for index in own if len(own) == 1 and lead <= index < starts[-turns]]
    return [*messages[:lead], *asked, *messages[starts[-turns] :]]


def _start_of_turns(messages: Sequence[Message], turns: int) -> int:
    """Where the last `turns` turns begin."""
    starts = [index for index, message in enumerate(messages) if isinstance(message, Assistant)]
    if turns >= len(starts):
        return 0
    return starts[-turns] if turns else _after_results(messages)


def _after_results(messages: Sequence[Message]) -> int:
    """After the last turn; what was said since belongs to none."""
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
        # A stub that is longer than what it stands for saves nothing.
        shorter = text is not None and len(text.encode()) < output_bytes(result.parts)
        results.append(replace(result, parts=(Text(text or ""),)) if shorter else result)
    return ToolResults(tuple(results))


def _stale(messages: Sequence[Message]) -> dict[str, str]:
    """The reads of files that were changed later, by call id, with the path."""
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
