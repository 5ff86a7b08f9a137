"""What an agent's own code puts on record while a run goes on: it is written down with what comes next."""

from __future__ import annotations

from collections.abc import Mapping

from weftline.kernel import bodies
from weftline.kernel.notes import PROMPT_NOTE, RUN_NOTE, PromptNote
from weftline.runtime.noting import MAX_NOTES, run_note


class Notes:
    """Those of one run that are not written down yet."""

    def __init__(self) -> None:
        self.turn = 0
        self._left = MAX_NOTES
        self._kept: dict[str, list[bytes]] = {}

    def begin_turn(self, turn: int) -> None:
        if turn != self.turn:
            self.turn, self._left = turn, MAX_NOTES

    def note(self, text: str, labels: Mapping[str, str] | None = None) -> None:
        """Raises `ValueError` for what cannot be one. Too many are dropped."""
        self._keep(RUN_NOTE, run_note(text, labels, turn=self.turn))

    def rendered(self, note: PromptNote) -> None:
        self._keep(PROMPT_NOTE, bodies.encode(note))

    def _keep(self, kind: str, encoded: bytes) -> None:
        if self._left:
            self._left -= 1
            self._kept.setdefault(kind, []).append(encoded)

    def taken(self) -> tuple[tuple[str, list[bytes]], ...]:
        """What is to be written down now, by kind."""
        if not self._kept:
            return ()
        kept, self._kept = self._kept, {}
        return tuple(kept.items())
