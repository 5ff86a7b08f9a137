"""A batch of calls costs in proportion to their number, whoever executes, approves, watches or reads them."""

from __future__ import annotations

import pytest

from .batches import CASES

SMALL, LARGE = 40, 120
ALLOWED = 1.1
"""Twice the calls may cost up to 2.2 times as much."""


@pytest.mark.parametrize("name", CASES)
async def test_three_times_the_calls_cost_three_times_as_much(name: str) -> None:
    play = CASES[name]
    await play(2)  # what is imported and compiled once is not counted
    small, large = await play(SMALL), await play(LARGE)
    factor = LARGE / SMALL
    assert small.total > SMALL, "nothing was counted"
    assert large.total <= small.total * factor * ALLOWED, large.grown_beyond(small, factor)
