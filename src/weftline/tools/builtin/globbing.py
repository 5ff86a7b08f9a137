"""Patterns for paths: `*`, `?` and `[…]` within a name, `**` for any number of directories, `{a,b}` for either.

Matching takes time proportional to the product of both lengths, whatever the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import translate

MAX_CHARS = 1000
MAX_ALTERNATIVES = 64


class BadGlob(Exception):
    """The pattern is too long or has too many alternatives."""


class Glob:
    """One compiled pattern, to match the parts of paths."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_CHARS:
            raise BadGlob
        self._patterns = [_steps(one) for one in _alternatives(pattern)]

    def matches(self, path: str) -> bool:
        parts = path.split("/")
        return any(_matches(steps, parts) for steps in self._patterns)


def _steps(pattern: str) -> list[re.Pattern[str] | None]:
    """Returns a pattern for each part of a path; None means `**`."""
    steps: list[re.Pattern[str] | None] = []
    for part in pattern.split("/"):
        if part == "**":
            if not steps or steps[-1] is not None:
                steps.append(None)
        elif part not in ("", "."):
            steps.append(re.compile(translate(part)))
    if steps and steps[-1] is None:
        steps.append(re.compile(translate("*")))
    return steps


def _matches(steps: list[re.Pattern[str] | None], parts: list[str]) -> bool:
    reached = {0}
    for part in parts:
        reached = set(_after(steps, reached, part))
        if not reached:
            return False
    return len(steps) in reached


def _after(steps: list[re.Pattern[str] | None], reached: set[int], part: str) -> Iterator[int]:
    """Yields the positions in the pattern that are possible after one more part of the path."""
    for place in reached:
        if place < len(steps) and steps[place] is None:
            yield place
            place += 1
        if place < len(steps):
            step = steps[place]
            if step is not None and step.match(part):
                yield place + 1


def _alternatives(pattern: str) -> list[str]:
    """Expands braces: returns the pattern once for each choice."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        one = waiting.pop()
        found = re.search(r"\{([^{}]*,[^{}]*)\}", one)
        if found is None:
            done.append(one)
        else:
            waiting += [one[: found.start()] + choice + one[found.end() :] for choice in found[1].split(",")]
        if len(done) + len(waiting) > MAX_ALTERNATIVES:
            raise BadGlob
    return done
