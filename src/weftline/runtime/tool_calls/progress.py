"""Records the progress that a tool reports, but no more than is worth storing."""

from __future__ import annotations

import asyncio

from msgspec import Raw, Struct

from weftline.kernel import bodies
from weftline.kernel.bodies import ProgressNote, ToolNote
from weftline.kernel.notes import TOOL_NOTE, TOOL_PROGRESS
from weftline.runtime.services import Sink
from weftline.text.canonical import canonical_value
from weftline.text.surrogates import storable
from weftline.tools.base import ToolProgress

MAX_NOTES = 200
"""The most notes of one call."""
EVERY_S = 0.2
MAX_MESSAGE_CHARS = 500
MAX_NOTE_BYTES = 64 * 1024


class ProgressNotes(Struct, eq=False):
    """Records the progress of one call. Reports that come faster than a person could read are dropped, and so are those
    after the call or its run has ended.
    """

    _sink: Sink
    _call: str
    _name: str
    """That of the tool."""
    _left: int = MAX_NOTES
    _next_at: float = 0.0

    def take(self, progress: ToolProgress) -> None:
        now = asyncio.get_running_loop().time()
        if not self._left or now < self._next_at or self._sink.full():
            return
        self._left -= 1
        self._next_at = now + EVERY_S
        message = storable(progress.message[:MAX_MESSAGE_CHARS])
        note = ProgressNote(self._call, self._name, progress.progress, progress.total, message)
        self._sink.emit(TOOL_PROGRESS, bodies.encode(note))

    def emit(self, kind: str, data: object) -> None:
        """Records a note of the tool's own. Raises `ValueError` for data that is not JSON, or too large."""
        if not self._left or self._sink.full():
            return
        encoded = canonical_value(data)
        if len(encoded) > MAX_NOTE_BYTES:
            raise ValueError(f"a note must have at most {MAX_NOTE_BYTES:,} bytes, not {len(encoded):,}")
        self._left -= 1
        self._sink.emit(TOOL_NOTE, bodies.encode(ToolNote(self._call, self._name, storable(kind), Raw(encoded))))

    def close(self) -> None:
        self._left = 0
