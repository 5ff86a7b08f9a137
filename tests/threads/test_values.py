"""Values of a thread: what JSON has is kept as it is, and what it has not is refused."""

from __future__ import annotations

from typing import Any

import pytest

from weftline.threads.state import LiveThread

CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.requirement("thread.value.roundtrip")
@pytest.mark.parametrize(
    "value", [{"a": [1, 2.5, None, True, {"": "\u00e9 \U0001f600 \x00"}]}, [], {}, "", 0, False, -0.5, 10**15]
)
async def test_value_is_read_as_it_was_set(state: LiveThread, value: Any) -> None:
    assert await state.get_value("key") is None
    await state.set_value("key", value)
    found = await state.get_value("key")
    assert found == value and type(found) is type(value)
    if isinstance(found, dict):
        found.clear()
        assert await state.get_value("key") == value
    await state.set_value("key", None)
    assert await state.get_value("key") is None


@pytest.mark.requirement("thread.value.reject")
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [1, float("nan")]}, r"value\.a\[1\] is nan"),
        (float("inf"), "value is inf"),
        ([b"x"], r"value\[0\] is of the type bytes"),
        ({"a": {1, 2}}, r"value\.a is of the type set"),
        ({"a": {1: 2}}, r"value\.a has a key"),
        (CYCLE, r"value\[0\] contains itself"),
        (object(), "value is of the type object"),
    ],
)
async def test_what_is_not_json_is_refused_by_its_path(state: LiveThread, value: Any, problem: str) -> None:
    await state.set_value("key", "before")
    with pytest.raises(TypeError, match=problem):
        await state.set_value("key", value)
    assert await state.get_value("key") == "before"
