"""Notes that an agent's own code records during a run. They are stored with the next entry."""

from __future__ import annotations

from collections.abc import Mapping

from weftline.agent.prompting import NO_PROMPTS, RunPrompts
from weftline.kernel import bodies
from weftline.kernel.notes import PROMPT_NOTE, RUN_NOTE
from weftline.runtime.notes import MAX_NOTES, run_note


class Notes:
    """The notes of one run that are not stored yet."""

    def __init__(self, prompts: RunPrompts | None = None) -> None:
        self._prompts = prompts or NO_PROMPTS
        self.turn = 0
        self._left = MAX_NOTES
        self._kept: dict[str, list[bytes]] = {}

    def begin_turn(self, turn: int) -> None:
        if turn != self.turn:
            self.turn, self._left = turn, MAX_NOTES

    def note(self, text: str, labels: Mapping[str, str] | None = None) -> None:
        """Keeps a note. Raises `ValueError` for an invalid one. Notes beyond `MAX_NOTES` per turn are dropped."""
        self._keep(RUN_NOTE, run_note(text, labels, turn=self.turn))

    def render(self, id: str, /, **data: object) -> str:
        """Renders a prompt, and keeps a note of it. Raises `ValueError` if it cannot be rendered."""
        text, note = self._prompts.render(id, data)
        self._keep(PROMPT_NOTE, bodies.encode(note))
        return text

    def _keep(self, kind: str, encoded: bytes) -> None:
        if self._left:
            self._left -= 1
            self._kept.setdefault(kind, []).append(encoded)

    def pop(self) -> tuple[tuple[str, list[bytes]], ...]:
        """Removes and returns the notes to store now, by kind."""
        if not self._kept:
            return ()
        kept, self._kept = self._kept, {}
        return tuple(kept.items())
