"""Reasoning as servers of Chat Completions stream it: in `<think>` tags, or as `reasoning_details`."""

from __future__ import annotations

from typing import Any, Literal

from weftline.providers.assemble import bounded
from weftline.providers.base import Chunk, TextDelta, ThinkingDelta, ThinkingDone


class ReasoningDetails:
    """The `reasoning_details` of one block: pieces with the same type and index belong together."""

    def __init__(self) -> None:
        self._found: list[dict[str, Any]] = []
        self._open: dict[tuple[str, str], int] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}
        """Text that later pieces added."""

    def take(self, details: list[dict[str, Any]]) -> None:
        for detail in details:
            identity = (repr(detail.get("type")), repr(detail.get("index")))
            at = None if detail.get("type") == "reasoning.encrypted" else self._open.get(identity)
            if at is None:
                self._open.setdefault(identity, len(self._found))
                self._found.append(dict(detail))
                bounded(self._found)
                continue
            same = self._found[at]
            for name, value in detail.items():
                if name in ("text", "summary") and isinstance(same.get(name), str) and isinstance(value, str):
                    self._pieces.setdefault((at, name), []).append(value)
                elif value or name not in same:
                    same[name] = value

    def whole(self) -> list[dict[str, Any]]:
        for (at, name), pieces in self._pieces.items():
            self._found[at][name] += "".join(pieces)
        self._pieces.clear()
        return self._found


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
