"""The scale of reasoning levels, 0 to 100, and how a model's own words sit on it."""

from __future__ import annotations

from collections.abc import Sequence


def nearest(places: Sequence[int], level: int) -> int:
    """The place nearest to `level`; the lower of two that are equally near."""
    return min(places, key=lambda place: (abs(place - level), place))
