"""A batch of calls costs in proportion to their number, whoever executes, approves, watches or reads them."""

from __future__ import annotations

import pytest
from hypothesis import settings

from .batches import CASES

SMALL, LARGE = (40, 120) if settings.get_current_profile_name() == "deep" else (20, 60)
FEWEST = 2
ALLOWED = 1.07
"""Three times the calls may cost up to 3.21 times as much, besides what a run costs without any."""


@pytest.mark.parametrize("name", CASES)
async def test_three_times_the_calls_cost_three_times_as_much(name: str) -> None:
    play = CASES[name]
    await play(FEWEST)  # what is imported and compiled once is not counted
    fewest, small, large = await play(FEWEST), await play(SMALL), await play(LARGE)
    factor = (LARGE - FEWEST) / (SMALL - FEWEST)
    assert small.total > SMALL, "nothing was counted"
    allowed = (small.total - fewest.total) * factor * ALLOWED
    assert large.total - fewest.total <= allowed, large.grown_beyond(small, factor)
