"""The scale of reasoning levels, 0 to 100, and how a model's own levels map to it."""

from __future__ import annotations

from collections.abc import Sequence


def nearest(places: Sequence[int], level: int) -> int:
    """Returns the place nearest to `level`; the lower one on a tie."""
    return min(places, key=lambda place: (abs(place - level), place))
