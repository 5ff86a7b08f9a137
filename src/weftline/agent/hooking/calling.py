"""Registers and calls hooks: one after the other, each seeing the changes of the one before."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from math import isfinite
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast, overload

from weftline.agent.context import RunContext
from weftline.agent.hooks import OTHER_NAMES, Point
from weftline.agent.hooks_outside import POINTS
from weftline.messages import Assistant, System, ToolResults, User, joined_text
from weftline.text.suggestions import did_you_mean
from weftline.tools.base import ToolOutput
from weftline.tools.results import output_of
from weftline.work.outcomes import attempt


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


logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    D = DefaultTypeVar("D", default=Any, contravariant=True)
else:
    D = TypeVar("D", contravariant=True)
P = TypeVar("P", bound=Point)
W = TypeVar("W")


class HookFailed(Exception):
    """A hook that was registered with `fail_closed` has raised; its error is the cause."""


class Hook(Generic[P, D]):
    """A function for one point. Calling it calls the function.

    `D` is the type of deps that it expects; a function without a `RunContext` expects none.
    """

    if not TYPE_CHECKING:
        # Python 3.11 and 3.12 have no defaults for type parameters: lets `Hook[…]` with fewer parameters be evaluated.
        __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, point: type[P] | str, fn: Callable[..., Any], *, fail_closed: bool = False) -> None:
        found: type[Any] = point_of(point)
        self.point: type[P] = found
        self.fn = fn
        self.fail_closed = fail_closed
        self.name: str = getattr(fn, "__name__", repr(fn))
        self.takes_context = _takes_context(fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Hook {self.name} at {self.point.name}>"


def check_hook(one: object) -> None:
    if not isinstance(one, Hook):
        raise TypeError(f"{one!r} is not a hook; make one with @hook(Point)")


@overload
def point_of(point: type[P]) -> type[P]: ...
@overload
def point_of(point: str) -> type[Any]: ...
def point_of(point: type[P] | str) -> type[Any]:
    """Returns a point by its class or name. Raises `TypeError` for an unknown one."""
    if isinstance(point, str):
        name = point.replace(":", "_").replace("-", "_")
        found = POINTS.get(OTHER_NAMES.get(name, name))
        if found is None:
            near = did_you_mean(name, [*POINTS, *OTHER_NAMES])
            raise TypeError(f"{point!r} is not a point that hooks can be registered for.{near}")
        return found
    if point not in POINTS.values():
        named = getattr(point, "__name__", repr(point))
        near = did_you_mean(named, [known.__name__ for known in POINTS.values()])
        raise TypeError(f"{named} is not a point that hooks can be registered for.{near}")
    return point


class Hooking(Protocol[P]):
    """Turns a function of a point, and optionally of the run's context, into a hook."""

    @overload
    def __call__(self, fn: Callable[[P], object], /) -> Hook[P, object]: ...
    @overload
    def __call__(self, fn: Callable[[P, RunContext[W]], object], /) -> Hook[P, W]: ...


@overload
def hook(point: type[P], *, fail_closed: bool = False) -> Hooking[P]: ...
@overload
def hook(point: str, *, fail_closed: bool = False) -> Callable[[Callable[..., Any]], Hook[Any]]: ...
def hook(point: type[Point] | str, *, fail_closed: bool = False) -> Any:
    """Turns a function into a hook for agents, runs and presets: `@hook(ContextBuilt)`, or by name.

    The function takes the point, and a `RunContext` if it has a second parameter. With `fail_closed` an error in it
    fails the turn or the call, instead of what usually happens to errors at its point.
    """

    found = point_of(point)

    def register(fn: Callable[..., Any]) -> Hook[Any]:
        return Hook(found, fn, fail_closed=fail_closed)

    return register


class Hooks:
    """The hooks of one run, by point."""

    def __init__(self, hooks: Iterable[Hook[Any]]) -> None:
        self._by_point: dict[type[Point], list[Hook[Any]]] = {}
        for one in hooks:
            self._by_point.setdefault(one.point, []).append(one)

    def __contains__(self, point: type[Point]) -> bool:
        return point in self._by_point

    def fail_closed(self, point: type[Point]) -> bool:
        """Returns True if a hook at this point must not fail."""
        return any(one.fail_closed for one in self._by_point.get(point, ()))

    async def gate(self, point: Point, context: object) -> BaseException | None:
        """Asks the gates. Stops at the first error and returns it; the caller decides what follows from it."""
        for one in self._by_point.get(type(point), ()):
            with attempt(logger, "the hook %s at %s failed", one.name, point.name) as calling:
                await _call_hook(one, point, context)
            if calling.error is not None:
                return calling.error
        return None

    async def ask(
        self, point: Point, context: object, *, decided: Callable[[], bool]
    ) -> tuple[str, BaseException | None]:
        """Asks the gates until one decides or fails. Returns its name, and its error if it failed."""
        for one in self._by_point.get(type(point), ()):
            with attempt(logger, "the hook %s at %s failed", one.name, point.name) as calling:
                await _call_hook(one, point, context)
            if calling.error is not None:
                return one.name, calling.error
            if decided():
                return one.name, None
        return "", None

    async def shape(self, point: Point, context: object) -> None:
        """Lets hooks edit a point. If a hook raises or sets an invalid value, its changes are undone."""
        for one in self._by_point.get(type(point), ()):
            before = {name: getattr(point, name) for name in point.settable}
            with attempt(logger, "the hook %s at %s failed; its changes are dropped", one.name, point.name) as calling:
                await _call_hook(one, point, context)
                check(point)
            if calling.error is not None:
                for name, value in before.items():
                    setattr(point, name, value)
                _fail_closed(one, point, calling.error)

    async def watch(self, point: Point, context: object) -> None:
        for one in self._by_point.get(type(point), ()):
            with attempt(logger, "the hook %s at %s failed", one.name, point.name) as calling:
                await _call_hook(one, point, context)
            _fail_closed(one, point, calling.error)

    def notify(self, point: Point, context: object) -> None:
        """Calls the synchronous hooks without waiting. A hook that turns out to be asynchronous is not called."""
        for one in self._by_point.get(type(point), ()):
            with attempt(logger, "the hook %s at %s failed", one.name, point.name) as calling:
                result = one.fn(point, context) if one.takes_context else one.fn(point)
                if inspect.iscoroutine(result):
                    result.close()
                    logger.error("the hook %s at %s has to be a plain function", one.name, point.name)
            _fail_closed(one, point, calling.error)


def _fail_closed(one: Hook[Any], point: Point, error: BaseException | None) -> None:
    if error is not None and one.fail_closed:
        raise HookFailed(f"The hook {one.name} at {point.name} failed: {error}") from error


async def _call_hook(one: Hook[Any], point: Point, context: object) -> None:
    result = one.fn(point, context) if one.takes_context else one.fn(point)
    if isinstance(result, Awaitable):
        await result


def _takes_context(fn: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [
        one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL)
    ]
    needed = [one for one in positional if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
    if (
        not positional
        or len(needed) > 2
        or any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters)
    ):
        name = getattr(fn, "__name__", repr(fn))
        raise TypeError(f"the hook {name} must take the point, and perhaps a RunContext, and nothing else")
    return len(positional) > 1 or any(one.kind is one.VAR_POSITIONAL for one in positional)
