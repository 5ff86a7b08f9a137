"""Rate limits.

Credentials are limited by a sliding window of one minute, in slots of one second. Password attempts use up an allowance
that is refilled gradually, so that nobody is locked out for long.
"""

from __future__ import annotations

DEFAULT_PER_MINUTE = 600_000
_SLOTS = 61
"""One more than the window has seconds: the oldest second and the current one are both only partly inside it."""
_SWEEP_AT = 10_000


class RateLimit:
    """Counts requests per credential.

    A refused request does not count, so a client that waits as instructed gets through.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        """0 means no limit."""
        self._windows: dict[str, _Window] = {}

    def take(self, who: str, *, now_us: int) -> int:
        """Counts a request of `who` and returns 0, or, if it is one too many, returns the seconds to wait."""
        if not self.per_minute:
            return 0
        window = self._windows.get(who)
        second = now_us // 1_000_000
        if window is None:
            if len(self._windows) >= _SWEEP_AT:
                self._sweep(second)
            window = self._windows[who] = _Window(second)
        window.move_to(second)
        if window.total < self.per_minute:
            window.count()
            return 0
        return window.wait_s(self.per_minute)

    def _sweep(self, second: int) -> None:
        self._windows = {who: window for who, window in self._windows.items() if second - window.newest < _SLOTS}


class _Window:
    __slots__ = ("counts", "newest", "total")

    def __init__(self, second: int) -> None:
        self.counts = [0] * _SLOTS
        self.newest = second
        self.total = 0

    def move_to(self, second: int) -> None:
        gap = second - self.newest
        if gap == 0:
            return
        if not 0 < gap < _SLOTS:
            # Long ago, or the clock was set back: a window in the future must not lock anybody out.
            self.counts = [0] * _SLOTS
            self.total = 0
        else:
            for step in range(1, gap + 1):
                slot = (self.newest + step) % _SLOTS
                self.total -= self.counts[slot]
                self.counts[slot] = 0
        self.newest = second

    def count(self) -> None:
        self.counts[self.newest % _SLOTS] += 1
        self.total += 1

    def wait_s(self, limit: int) -> int:
        """Returns the seconds until enough requests have left the window."""
        left = self.total
        for age in range(_SLOTS - 1, 0, -1):
            left -= self.counts[(self.newest - age) % _SLOTS]
            if left < limit:
                return _SLOTS - age
        return _SLOTS


class Allowance:
    """Allows `burst` at once, and after that `per_minute`, for each user of it."""

    def __init__(self, *, burst: int, per_minute: int) -> None:
        self._each_us = 60_000_000 // per_minute
        self._slack_us = burst * self._each_us
        self._full_at: dict[str, int] = {}
        """When each allowance will be full again."""

    def wait_s(self, who: str, *, now_us: int) -> float:
        """Returns the seconds until something is available; 0 if it is now."""
        over_us = self._full_at.get(who, 0) + self._each_us - self._slack_us - now_us
        # If the clock was set back it is far in the future, which must not lock anybody out.
        return 0 if over_us <= 0 or over_us > self._slack_us else over_us / 1e6

    def draw(self, who: str, *, now_us: int) -> None:
        if len(self._full_at) >= _SWEEP_AT:
            self._full_at = {one: at for one, at in self._full_at.items() if at > now_us}
        self._full_at[who] = max(self._full_at.get(who, 0), now_us) + self._each_us
