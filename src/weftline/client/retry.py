"""Retries: how many, and after which pauses."""

from __future__ import annotations

import random

from msgspec import Struct


class Retry(Struct, frozen=True):
    """Exponential backoff with jitter: `first_s`, doubled each time up to `most_s`.

    `attempts` limits consecutive failed tries. The server's `Retry-After` is the minimum wait; one longer than
    `patience_s` is not waited for.
    """

    attempts: int = 8
    first_s: float = 0.25
    most_s: float = 10.0
    patience_s: float = 120.0

    def wait_s(self, failures: int, *, at_least_s: float | None = None) -> float:
        """Returns the pause after the `failures`-th failure in a row, counted from 1."""
        whole = min(self.most_s, self.first_s * 2 ** min(failures - 1, 30))
        # Jitter spreads clients that were disconnected together.
        return max(at_least_s or 0.0, whole * random.uniform(0.5, 1.0))
