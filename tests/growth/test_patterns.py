"""Every regular expression of the package against texts that make a bad one try everything."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import weftline

from .meter import ALLOWED, Work, growth

SOURCE = Path(weftline.__file__).parent
NOT_FROM_OUTSIDE = ("weftline.testing", "weftline.cli", "weftline.__main__")
"""Read by whoever runs the command, on their own machine."""
SEEDS = ("a", "0", " ", "\n", "-", ".", "_", "/", ":", ";", "@", "{", "}", "{{", "a.", "a-", "0.", "a:", ";a", '"', "é")
HEADS = ("", "data:", "{{", "{{ a", "http://", '"retryDelay"', "input", "prompt", "context", "{1", "gemini-", "claude-")
SIZE = 1_500
USES_RE = re.compile(r"\bre\s*\.")


def modules() -> Iterator[str]:
    for found in pkgutil.walk_packages([str(SOURCE)], "weftline."):
        if not found.name.startswith(NOT_FROM_OUTSIDE):
            yield found.name


def patterns() -> dict[str, re.Pattern[str]]:
    """Those that modules hold, those in calls of `re`, and those that the wire's limits spell out."""
    found: dict[str, re.Pattern[str]] = {}
    for name in modules():
        path = SOURCE.joinpath(*name.split(".")[1:])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if USES_RE.search(source) else ():
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re")), args=[ast.Constant(value=str() | bytes() as text), *_]
                ):
                    found[f"{name}:{node.lineno}"] = re.compile(text if isinstance(text, str) else text.decode())
                case _:
                    pass
    limits = importlib.import_module("weftline.wire.limits")
    for name, value in vars(limits).items():
        if name.endswith("_PATTERN"):
            found[f"weftline.wire.limits:{name}"] = re.compile(value)
    return found


PATTERNS = patterns()


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_takes_time_that_grows_with_the_text(name: str) -> None:
    pattern = PATTERNS[name]

    def make(size: int) -> Work:
        texts = [f"{head}{seed * size}!" for head in HEADS for seed in SEEDS]
        return lambda: [(pattern.match(text), pattern.fullmatch(text)) for text in texts]

    assert growth(make, SIZE) <= ALLOWED


def test_the_patterns_were_found() -> None:
    assert len(PATTERNS) > 30 and any("templates" in name for name in PATTERNS)
