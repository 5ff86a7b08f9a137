"""Checks the values that hooks set on a point, since types alone guarantee nothing in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, cast

from weftline.agent.hooks import Point
from weftline.messages import Assistant, System, ToolResults, User, joined_text
from weftline.tools.base import ToolOutput
from weftline.tools.results import output_of


def check(point: Point) -> None:
    """Raises `TypeError` or `ValueError` if a hook set an invalid value."""
    for name in point.settable:
        judge = _JUDGES.get(name)
        if judge is None:
            continue
        problem = judge(getattr(point, name))
        if problem:
            raise TypeError(f"{name} of {point.name} {problem}")
        if name == "messages":
            setattr(point, name, tuple(getattr(point, name)))  # a copy, so that the hook can no longer change it


def _messages(value: object) -> str:
    items = _items(value)
    if items is None:
        return f"must be a sequence of messages, not {_kind(value)}"
    if not items:
        return "must not be empty: a model has to be asked something"
    for index, one in enumerate(items):
        if not isinstance(one, System | User | Assistant | ToolResults):
            return f"must hold messages only; item {index} is {_kind(one)}"
    return ""


def _texts(value: object) -> str:
    items = _items(value)
    if items is None or not all(isinstance(one, str) for one in items):
        return "must be a sequence of strings"
    return ""


def _text(value: object) -> str:
    return "" if isinstance(value, str) else f"must be a string, not {_kind(value)}"


def _flag(value: object) -> str:
    return "" if isinstance(value, bool) else f"must be True or False, not {_kind(value)}"


def _number(low: float, high: float | None = None, *, whole: bool = False) -> Callable[[object], str]:
    kinds = (int,) if whole else (int, float)
    bounds = f"of {low:g} or more" if high is None else f"from {low:g} to {high:g}"
    wanted = f"must be None or {'an integer' if whole else 'a number'} {bounds}"

    def judge(value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, bool) or not isinstance(value, kinds):
            return f"{wanted}, not {_kind(value)}"
        fits = isfinite(value) and value >= low and (high is None or value <= high)
        return "" if fits else f"{wanted}, not {value}"

    return judge


def _result(value: object) -> str:
    if isinstance(value, ToolOutput):
        return ""
    output = output_of(value, tool_name="the hook")
    return f"is not something that a tool may return: {joined_text(output.parts)}" if output.is_error else ""


def _items(value: object) -> Sequence[object] | None:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return None
    return cast("Sequence[object]", value)


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


_JUDGES: Final[Mapping[str, Callable[[Any], str]]] = {
    "messages": _messages,
    "system": _text,
    "reasoning": _number(0, 100, whole=True),
    "max_output_tokens": _number(1, whole=True),
    "temperature": _number(0),
    "top_p": _number(0, 1),
    "stop": _texts,
    "tools": _texts,
    "result": _result,
    "is_error": _flag,
    "suppress_error": _flag,
}
"""By settable name: returns what is wrong with a value, or None."""
