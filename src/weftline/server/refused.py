"""Refused requests in the log: a line each while they are few, and a line for all of them when they are many."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextvars import Context

logger = logging.getLogger(__name__)

WINDOW_S = 60.0
MAX_LINES = 20
"""Of one workspace in a window, and of all requests that nobody has vouched for."""
MAX_WORKSPACES = 200
"""That are told apart in one window."""

_STRANGERS = ""
_OTHERS = "other workspaces"


class RefusedRequests:
    """Counts in windows of a minute. One workspace's flood takes no lines away from another."""

    def __init__(self) -> None:
        self._lines: Counter[str] = Counter()
        self._untold: dict[str, Counter[str]] = {}
        self._window: asyncio.TimerHandle | None = None

    def note(self, *, status: int, code: str, method: str, path: str, workspace: str) -> None:
        """`workspace` is that of the credential; empty if there was none that is valid."""
        if self._window is None:
            self._window = asyncio.get_running_loop().call_later(WINDOW_S, self.tell, context=Context())
        if workspace not in self._lines and len(self._lines) >= MAX_WORKSPACES:
            workspace = _OTHERS
        self._lines[workspace] += 1
        if self._lines[workspace] <= MAX_LINES:
            # The server's own trouble is worth more than a client's.
            level = logging.WARNING if status >= 500 else logging.INFO
            logger.log(level, "refused %s %s: %d %s", method, path[:500], status, code)
        else:
            self._untold.setdefault(workspace, Counter())[code] += 1

    def tell(self) -> None:
        """Ends the window: a line for each workspace whose refusals had no lines of their own."""
        if self._window is not None:
            self._window.cancel()
            self._window = None
        self._lines.clear()
        untold, self._untold = self._untold, {}
        for workspace, codes in untold.items():
            whose = "without a valid credential" if workspace == _STRANGERS else f"of {workspace}"
            by_code = ", ".join(f"{count:,} {code}" for code, count in codes.most_common(10))
            logger.info("refused %s more requests %s within a minute: %s", f"{codes.total():,}", whose, by_code)
