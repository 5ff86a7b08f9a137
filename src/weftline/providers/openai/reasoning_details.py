"""The `reasoning_details` of Chat Completions, as some servers stream them and want them back."""

from __future__ import annotations

from typing import Any

from weftline.providers.answer_limits import bounded


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
