"""The time limits while a body is read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from weftline.net.errors import RequestFailed
from weftline.net.limits import TimeLimits

if TYPE_CHECKING:
    import aiohttp


class BodyWatch:
    """One timer per body, which is not reset at every read: when it fires, it checks the progress.

    The reader sets `waiting_since` while it waits for the next piece.
    """

    __slots__ = ("_content", "_deadline", "_host", "_limits", "_timer", "now", "waiting_since")

    def __init__(self, content: aiohttp.StreamReader, *, host: str, limits: TimeLimits, started: float) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self.waiting_since: float | None = None
        self._content = content
        self._host = host
        self._limits = limits
        self._deadline = None if limits.total_s is None else started + limits.total_s
        self._timer: asyncio.TimerHandle | None = None
        if not content.is_eof():
            self._look()
            # A body that has fully arrived may be read at any pace.
            content.on_eof(self.stop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now, idle_s = self.now(), self._limits.idle_s
        since = now if self.waiting_since is None else self.waiting_since
        if self._deadline is not None and now >= self._deadline:
            self._give_up(f"{self._host} did not finish its response within {self._limits.total_s:g} s.")
        elif idle_s is not None and now - since >= idle_s:
            self._give_up(f"{self._host} sent nothing for {idle_s:g} s in the middle of its response.")
        else:
            times = [time for time in (self._deadline, None if idle_s is None else since + idle_s) if time is not None]
            self._timer = asyncio.get_running_loop().call_at(min(times), self._look) if times else None

    def _give_up(self, message: str) -> None:
        self._timer = None
        self._content.set_exception(RequestFailed("timeout", message, sent=True))
