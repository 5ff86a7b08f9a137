"""The meter itself: it tells what grows with the square from what does not."""

from __future__ import annotations

from .meter import ALLOWED, Work, growth


def linear(size: int) -> Work:
    return lambda: sum(range(size * 50))


def quadratic(size: int) -> Work:
    return lambda: [sum(range(size // 20)) for _ in range(size // 20)]


def test_work_in_proportion_passes() -> None:
    assert growth(linear, 2_000) <= ALLOWED


def test_work_that_grows_with_the_square_does_not() -> None:
    assert growth(quadratic, 5_000) > ALLOWED
