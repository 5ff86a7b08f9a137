"""Checks arguments where callers pass them.

A value of the wrong type that is found later fails far from the mistake, or is stored and makes the run unreadable.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from reprlib import Repr
from typing import Any, Final, cast

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = 80


def expect(name: str, given: object, kinds: type | tuple[type, ...], like: str) -> None:
    """Raises `TypeError` unless the value has one of these types. `like` describes what it should be."""
    if not isinstance(given, kinds):
        raise TypeError(f"{name} must be {like}, not {_REPR.repr(given)}")


def number(
    name: str,
    given: object,
    *,
    minimum: float = 0,
    above: bool = False,
    maximum: float | None = None,
    whole: bool = False,
) -> None:
    """Raises `TypeError` for anything but a number, and `ValueError` for a number out of range.

    With `above`, it must be greater than `minimum`.
    """
    kinds = int if whole else (int, float)
    if isinstance(given, bool) or not isinstance(given, kinds):
        raise TypeError(f"{name} must be {'an integer' if whole else 'a number'}, not {_REPR.repr(given)}")
    if maximum is not None and not minimum <= given <= maximum:
        raise ValueError(f"{name} must be from {minimum:g} to {maximum:g}, not {given}")
    if above and not given > minimum:
        raise ValueError(f"{name} must be above {minimum:g}, not {given}")
    if given < minimum:
        raise ValueError(f"{name} must be 0 or more, not {given}")
    if not isfinite(given):
        raise ValueError(f"{name} must be a finite number, not {given}")


def choice(name: str, given: object, among: Iterable[str]) -> None:
    """Raises `ValueError` unless the value is one of these words."""
    words = tuple(among)
    if not (isinstance(given, str) and given in words):
        raise ValueError(f"{name} must be one of {', '.join(words)}, not {_REPR.repr(given)}")


def flag(name: str, given: object) -> None:
    if not isinstance(given, bool):
        raise ValueError(f"{name} must be True or False, not {_REPR.repr(given)}")


def texts(name: str, given: object, *, such_as: str) -> tuple[str, ...]:
    """Returns several strings as a tuple. A single string is refused, since it would be read letter by letter."""
    like = f"a list of strings, such as {such_as}"
    if isinstance(given, str):
        raise TypeError(f"{name} must be {like}, not a single string: {_REPR.repr(given)}")
    expect(name, given, Sequence, like)
    for one in cast("Sequence[object]", given):
        expect(f"each of {name}", one, str, "a string")
        if not one:
            raise ValueError(f"{name} must not contain an empty string")
    return tuple(cast("Sequence[str]", given))


def model(name: str, given: object) -> None:
    """Checks for a model id or a provider.

    A provider class is refused here, as it would fail in the middle of a run.
    """
    if given is None or isinstance(given, str):
        return
    answers = hasattr(given, "stream") or hasattr(given, "generate")
    if isinstance(given, type) or not answers:
        raise TypeError(f"{name} must be a name such as 'openai:gpt-5', or a provider, not {_REPR.repr(given)}")


def instructions(given: object) -> None:
    if given is not None and not isinstance(given, str) and not callable(given):
        raise TypeError(f"instructions must be a string, or a function that returns one, not {_REPR.repr(given)}")


def deps(given: object) -> None:
    """Checks for a type or a factory. What a factory returns is only known when it is called; see `check_deps`."""
    if given is None or isinstance(given, type):
        return
    if not callable(given):
        raise TypeError(
            "deps must be a type, whose value is given with each run (run(…, deps=…)), or a factory,"
            f" not {_REPR.repr(given)}"
        )
    factory = cast("Callable[..., Any]", given)
    if inspect.isasyncgenfunction(factory):
        raise TypeError(f"deps: the factory {_name(factory)} needs @asynccontextmanager from contextlib")
    if inspect.iscoroutinefunction(factory) or inspect.isgeneratorfunction(inspect.unwrap(factory)):
        raise TypeError(f"deps: the factory {_name(factory)} must be {CONTEXT_MANAGER}")


CONTEXT_MANAGER: Final = "an async context manager: an async function that yields, with @asynccontextmanager"


def check_deps(given: object) -> None:
    """Raises `TypeError` if what a factory returned is not an async context manager."""
    if not hasattr(given, "__aenter__"):
        if inspect.iscoroutine(given):
            given.close()  # nobody will await it
        raise TypeError(f"the factory of the deps must be {CONTEXT_MANAGER}. It returned {_REPR.repr(given)}")


def require_list(name: str, given: object, kinds: type | tuple[type, ...], like: str) -> None:
    """Raises `TypeError` unless the value is a list of these types. A string is refused."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise TypeError(f"{name} must be a list, not {_REPR.repr(given)}")
    for one in cast("Sequence[object]", given):
        expect(f"each of {name}", one, kinds, like)


def _name(factory: Callable[..., Any]) -> str:
    return repr(getattr(factory, "__name__", factory))
