"""Notes about a turn from hooks and providers: checked, and encoded for the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from msgspec import Struct

from weftline.kernel import bodies
from weftline.kernel.notes import RUN_NOTE, RunNote
from weftline.runtime.services import Sink
from weftline.text.surrogates import storable

MAX_NOTES = 200
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
