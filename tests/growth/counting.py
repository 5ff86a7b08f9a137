"""Counts the lines of the library that run: what work costs, without a clock."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import weftline

_LIBRARY = str(Path(weftline.__file__).parent)


class Lines:
    """The lines that this thread runs inside the block, by where they are."""

    def __init__(self) -> None:
        self._counted: list[tuple[str, Counter[int]]] = []
        """The file of each function, and how often its lines ran."""
        self._counts: dict[CodeType, Any] = {}
        """What counts the lines of a function, if it is one of the library."""
        self._before: Any = None

    def __enter__(self) -> Lines:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if code not in self._counts:
            self._counts[code] = self._new_count(code.co_filename)
        count = self._counts[code]
        return None if count is None else count(frame, event, arg)

    def _new_count(self, path: str) -> Any:
        if not path.startswith(_LIBRARY):
            return None
        lines: Counter[int] = Counter()
        self._counted.append((path, lines))

        # Nearly all the time of a count is spent here.
        def count(frame: FrameType, _event: str, _arg: Any) -> Any:
            lines[frame.f_lineno] += 1
            return count

        return count

    @property
    def total(self) -> int:
        return sum([lines.total() for _, lines in self._counted])

    def _seen(self) -> Counter[tuple[str, int]]:
        seen: Counter[tuple[str, int]] = Counter()
        for path, lines in self._counted:
            seen.update({(path, line): count for line, count in lines.items()})
        return seen

    def grown_beyond(self, smaller: Lines, factor: float) -> list[str]:
        """The lines that ran more than `factor` times as often as in `smaller`, the most expensive first."""
        seen, before = self._seen(), smaller._seen()
        grown = {where: count - factor * before[where] for where, count in seen.items()}
        worst = sorted(grown, key=lambda where: grown[where], reverse=True)[:8]
        return [f"{path.removeprefix(_LIBRARY)}:{line} ran {seen[path, line]} times" for path, line in worst]
