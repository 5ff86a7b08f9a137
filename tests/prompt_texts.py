"""What the tests of all texts that a model reads ask of their modules."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType

_SAYS = ("ToolFailed", "ToolOutput.of")


def constants(prompts: ModuleType) -> dict[str, str]:
    return {name: value for name, value in vars(prompts).items() if isinstance(value, str) and name.isupper()}


def functions(prompts: ModuleType) -> set[str]:
    return {name for name, value in vars(prompts).items() if inspect.isfunction(value) and name[0] != "_"}


def filled_in(prompts: ModuleType, name: str, given: tuple[object, ...], options: dict[str, object]) -> str:
    return getattr(prompts, name)(*given, **options)


def sentences_of_their_own(paths: list[Path]) -> list[str]:
    """Where these files tell a model something in words that do not come from a module of prompts."""
    found: list[str] = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in _SAYS and node.args:
                said = [part for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
                words = [part.value for part in said if isinstance(part.value, str) and len(part.value.split()) > 1]
                found += [f"{path.name}:{node.lineno}: {word}" for word in words]
    return found
