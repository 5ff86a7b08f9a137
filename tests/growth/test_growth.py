"""Wherever input from outside is parsed or matched, the work grows with the input and not with its square.

Each place is fed the worst that is known for it, at two sizes. A new place that reads what strangers send belongs into
one of the two tables.
"""

from __future__ import annotations

import pytest

from . import answers, requests
from .meter import ALLOWED, Maker, growth

PLACES: dict[str, tuple[int, Maker]] = {**requests.CASES, **answers.CASES}


@pytest.mark.parametrize("place", PLACES)
def test_work_grows_with_its_input(place: str) -> None:
    size, make = PLACES[place]
    assert growth(make, size) <= ALLOWED
