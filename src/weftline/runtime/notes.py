"""Notes in the log while a run is driven: the progress that tools report, and what hooks and providers record."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from msgspec import Raw, Struct

from weftline.kernel import bodies
from weftline.kernel.bodies import ProgressNote, ToolNote
from weftline.kernel.notes import RUN_NOTE, TOOL_NOTE, TOOL_PROGRESS, RunNote
from weftline.runtime.services import Sink
from weftline.text.canonical import canonical_value
from weftline.text.characters import storable
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


"""The most notes of one turn."""
MAX_NOTE_CHARS = 8_000
MAX_LABELS = 16
MAX_LABEL_CHARS = 256


def run_note(text: object, labels: object, *, turn: int) -> bytes:
    """Raises `ValueError` if it is not a text with labels of strings, or is too large."""
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_NOTE_CHARS:
        raise ValueError(f"a note must be a string of 1 to {MAX_NOTE_CHARS:,} characters")
    given = list(cast("Mapping[object, object]", labels or {}).items()) if isinstance(labels, Mapping | None) else [()]
    pairs = [
        [storable(part) for part in pair if isinstance(part, str) and len(part) <= MAX_LABEL_CHARS] for pair in given
    ]
    if len(pairs) > MAX_LABELS or any(len(pair) != 2 for pair in pairs):  # invalid parts are missing from their pairs
        raise ValueError(
            f"the labels of a note are up to {MAX_LABELS} strings of {MAX_LABEL_CHARS} characters, by name"
        )
    return bodies.encode(RunNote(storable(text), {pair[0]: pair[1] for pair in pairs}, turn))


class ProviderNotes(Struct, eq=False):
    """Accepts a provider's notes about its attempt. Too many notes are dropped."""

    _sink: Sink
    _turn: int
    _left: int = MAX_NOTES

    def __call__(self, text: str, labels: Mapping[str, str] | None = None) -> None:
        encoded = run_note(text, labels, turn=self._turn)
        if self._left and self._sink.wanted() and not self._sink.full():
            self._left -= 1
            self._sink.emit(RUN_NOTE, encoded)
