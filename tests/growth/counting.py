"""Counts the lines of the library that run: what work costs, without a clock."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import weftline

_LIBRARY = str(Path(weftline.__file__).parent)


class Lines:
    """The lines that this thread runs inside the block, by where they are."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, int]] = Counter()
        self._before: Any = None

    def __enter__(self) -> Lines:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(_LIBRARY):
            return None
        self._seen[path, frame.f_lineno] += 1
        return self._trace

    @property
    def total(self) -> int:
        return self._seen.total()

    def grown_beyond(self, smaller: Lines, factor: float) -> list[str]:
        """The lines that ran more than `factor` times as often as in `smaller`, the most expensive first."""
        grown = {where: count - factor * smaller._seen[where] for where, count in self._seen.items()}
        worst = sorted(grown, key=lambda where: grown[where], reverse=True)[:8]
        return [f"{path.removeprefix(_LIBRARY)}:{line} ran {self._seen[path, line]} times" for path, line in worst]
