"""Reasoning inside `<think>` at the beginning of the text, as open models write it."""

from __future__ import annotations

from typing import Literal

from weftline.providers.base import Chunk, TextDelta, ThinkingDelta, ThinkingDone

_OPEN = "<think>"
_CLOSE = "</think>"


class ThinkTags:
    """Splits text into reasoning and answer, in pieces of any size. Only a tag at the very beginning counts."""

    __slots__ = ("_blanks", "_held", "_state")

    def __init__(self) -> None:
        self._state: Literal["start", "opened", "thinking", "after", "text"] = "start"
        self._held: str = ""
        self._blanks: list[str] = []
        """Leading white space, in pieces, of which there may be any number."""

    @property
    def is_over(self) -> bool:
        """True if all that follows is text."""
        return self._state == "text"

    def feed(self, text: str) -> list[Chunk]:
        if self._state == "text":
            return [TextDelta(text)]
        chunks: list[Chunk] = []
        text = self._held + text
        self._held = ""
        if self._state == "start":
            begun = text.lstrip()
            self._blanks.append(text[: len(text) - len(begun)])
            if _OPEN.startswith(begun[: len(_OPEN)]) and len(begun) < len(_OPEN):
                self._held = begun
                return []
            self._state = "opened" if begun.startswith(_OPEN) else "text"
            text = begun.removeprefix(_OPEN) if self._state == "opened" else "".join([*self._blanks, begun])
            self._blanks.clear()
        if self._state == "opened":
            text = text.lstrip("\n")
            self._state = "thinking" if text else "opened"
        if self._state == "thinking":
            thought, closed, text = text.partition(_CLOSE)
            if closed:
                self._state = "after"
            else:
                keep = _overlap(thought)
                thought, self._held = thought[: len(thought) - keep], thought[len(thought) - keep :]
            if thought:
                chunks.append(ThinkingDelta(thought))
            if closed:
                chunks.append(ThinkingDone())
        if self._state == "after":
            text = text.lstrip()
            if text:
                self._state = "text"
        if self._state == "text" and text:
            chunks.append(TextDelta(text))
        return chunks

    def end(self) -> list[Chunk]:
        """Returns what was held back, now that nothing follows."""
        held = "".join([*self._blanks, self._held])
        self._held = ""
        self._blanks.clear()
        if not held:
            return []
        return [ThinkingDelta(held)] if self._state == "thinking" else [TextDelta(held)]


def _overlap(text: str) -> int:
    """Returns how many of the last characters may be the beginning of the closing tag."""
    return next((size for size in range(min(len(_CLOSE) - 1, len(text)), 0, -1) if _CLOSE.startswith(text[-size:])), 0)
