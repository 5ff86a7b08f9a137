"""Histories of a simulated server: every promise is kept, whatever the seed brings."""

from __future__ import annotations

import pytest

from weftline.testing.simulation import Histories

SEEDS = range(150)
TOGETHER = 10


@pytest.mark.requirement("run.simulation.seeds")
@pytest.mark.parametrize("first", SEEDS[::TOGETHER])
def test_every_promise_is_kept(first: int) -> None:
    histories = Histories()
    for seed in range(first, first + TOGETHER):
        histories.run(seed)
