"""How often the things happen that make a history difficult."""

from __future__ import annotations

from msgspec import Struct

from campaigns.simulation.disk import FAST_S


class Odds(Struct, frozen=True):
    """What a history is chosen from; of several values, each is as likely as the others."""

    threads: tuple[int, ...] = (0, 1, 1, 2)
    slowest_s: tuple[float, ...] = (FAST_S, FAST_S, 0.2)
    """How long a write may take."""
    damages: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.01)
    """The share of writes that fail."""
    kills: tuple[int, ...] = (0, 0, 1, 2, 4)
    storm: float = 0.12
    stops: tuple[int, ...] = (0, 0, 0, 1, 3)
    refuses: float = 0.3
    unreadable: float = 0.1
    clock_is_set: float = 0.2
    set_by_s: tuple[float, ...] = (-3600.0, 3600.0)
    stalls: float = 0.2
