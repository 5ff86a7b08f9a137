"""Equality of JSON values for the function that gets them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, cast


def alike(one: object, other: object) -> bool:
    """Returns whether two values have the same types and contents, all the way down.

    Only what was read for the first value counts. Fields that were left out have their defaults, which pydantic does
    not convert to the declared types; private attributes of models are set by their own code.
    """
    kind = type(one)
    if one is other:
        return True
    if kind is not type(other):
        return kind in (int, float) and type(other) in (int, float) and one == other
    if isinstance(one, dict):
        first, second = cast("dict[object, object]", one), cast("dict[object, object]", other)
        return first.keys() == second.keys() and all(alike(value, second[key]) for key, value in first.items())
    if isinstance(one, list | tuple | deque):
        items, others = cast("list[object]", one), cast("list[object]", other)
        return len(items) == len(others) and all(map(alike, items, others))
    if hasattr(kind, "__pydantic_fields__") and hasattr(one, "__pydantic_fields_set__"):
        return _alike_models(one, other)
    if is_dataclass(kind):
        names = [field.name for field in fields(kind) if getattr(one, field.name, None) is not field.default]
        return _alike_in(names, one, other)
    if kind.__eq__ is object.__eq__ and getattr(one, "__dict__", None) and not callable(one):
        return alike(vars(one), vars(other))
    try:
        return bool(one == other)
    except Exception:  # raised by the code of a tool's author
        return False


def _alike_models(one: Any, other: Any) -> bool:
    known: dict[str, object] = one.__pydantic_fields__
    names = known.keys() & cast("set[str]", one.__pydantic_fields_set__)
    return _alike_in(names, one, other) and alike(one.__pydantic_extra__, other.__pydantic_extra__)


def _alike_in(names: Iterable[str], one: object, other: object) -> bool:
    return all(alike(getattr(one, name, None), getattr(other, name, None)) for name in names)
