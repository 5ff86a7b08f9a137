"""Every behaviour that we promise (`requirements/*.toml`) is shown by a test that names it, or is on the list below."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
NOT_BUILT = frozenset((TESTS / "requirements" / "not_built.txt").read_text(encoding="utf-8").split())
"""Threads, and what needs more than one server. `make requirements` writes it down anew."""


@cache
def promised() -> list[str]:
    files = sorted((TESTS / "requirements").glob("*.toml"))
    return [one["id"] for file in files for one in tomllib.loads(file.read_text(encoding="utf-8"))["requirement"]]


@cache
def shown() -> set[str]:
    return {name for path in TESTS.rglob("*.py") for name in marks(path.read_text(encoding="utf-8"))}


def marks(source: str) -> Iterable[str]:
    if "requirement(" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "requirement":
            yield from (one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str))


def test_each_promise_is_made_once() -> None:
    assert [name for name, times in Counter(promised()).items() if times > 1] == []


def test_each_mark_names_a_promise() -> None:
    assert sorted(shown() - set(promised())) == []


def test_each_promise_is_shown_or_listed_as_not_built() -> None:
    assert [name for name in promised() if name not in shown() and name not in NOT_BUILT] == []


def test_requirement_with_a_test_is_not_listed_as_unbuilt() -> None:
    assert sorted(NOT_BUILT & shown()) == []


def test_marks_are_found_in_calls_and_decorators() -> None:
    source = '@pytest.mark.requirement("a.b", "c.d")\ndef test(): ...\nx = requirement("e.f")\n'
    assert set(marks(source)) == {"a.b", "c.d", "e.f"}


if __name__ == "__main__":
    left = sorted(set(promised()) - shown())
    (TESTS / "requirements" / "not_built.txt").write_text("".join([f"{name}\n" for name in left]), encoding="utf-8")
