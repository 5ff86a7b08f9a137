"""Leaving parts of the conversation out of a request. The stored conversation stays whole, and calls keep their
results.
"""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from weftline import prompts
from weftline.agent.behavior import Behavior
from weftline.messages import Assistant, Message, System, Text, ToolResult, ToolResults, User, joined_text
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
