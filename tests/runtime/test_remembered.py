"""Which later calls an approval covers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.json import encode

from weftline.runtime.people.answering import pattern_of
from weftline.runtime.people.awaits import covers


@pytest.mark.parametrize(
    ("remembered", "args", "covered"),
    [
        ({"amount": 3}, {"amount": 3.0}, True),
        ({"amount": 3.0}, {"amount": 3}, True),
        ({"plan": {"days": [1, 2.0]}}, {"plan": {"days": [1.0, 2]}}, True),
        ({"amount": 3}, {"amount": 3.5}, False),
        ({"amount": 1}, {"amount": True}, False),
        ({"amount": [0]}, {"amount": [False]}, False),
        ({"amount": 2**53 + 1}, {"amount": float(2**53)}, False),
        ({"amount": "3"}, {"amount": 3}, False),
        ({"amount": None}, {"amount": 0}, False),
        ({"amount": {}}, {"amount": []}, False),
        ({"plan": {"a": 1}}, {"plan": {"a": 1, "b": 2}}, False),
        ({"amount": 3}, {}, False),
    ],
)
def test_a_remembered_value_covers_calls_with_the_same_json(
    remembered: Mapping[str, object], args: Mapping[str, object], covered: bool
) -> None:
    pattern = pattern_of("pay", remembered)
    assert pattern is not None
    assert covers(pattern, "pay", encode(args)) is covered
    assert not covers(pattern, "refund", encode(args))
