"""Writes large results to files. The conversation has a stub with the beginning of the result."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from pathlib import Path

import msgspec
from msgspec.structs import replace

from weftline import prompts
from weftline.agent.behavior import Behavior
from weftline.messages import Text, joined_text
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
