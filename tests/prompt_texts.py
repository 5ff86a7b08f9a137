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
    found = inspect.getmembers(prompts, inspect.isfunction)
    return {name for name, value in found if value.__module__ == prompts.__name__ and name[0] != "_"}


def filled_in(prompts: ModuleType, name: str, given: tuple[object, ...], options: dict[str, object]) -> str:
    return getattr(prompts, name)(*given, **options)


def sentences_of_their_own(paths: list[Path]) -> list[str]:
    """Where these files tell a model something in words that do not come from a module of prompts.

    That is what they give to `ToolFailed` and `ToolOutput.of`, directly or by a variable, and, in files that use these,
    the messages of their private exceptions, which end up there.
    """
    found: list[str] = []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        if not any(name in source for name in _SAYS):
            continue
        tree = ast.parse(source)
        says = {*_SAYS, *_private_errors(tree)}
        for scope, call in _calls(tree):
            if ast.unparse(call.func) in says and call.args:
                words = [word for part in _reached(call.args[0], scope) for word in _sentences(part)]
                found += [f"{path.name}:{call.lineno}: {word}" for word in dict.fromkeys(words)]
    return found


def _private_errors(tree: ast.Module) -> set[str]:
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name[0] == "_"]
    return {
        one.name for one in classes if any(ast.unparse(base).endswith(("Error", "Exception")) for base in one.bases)
    }


def _calls(tree: ast.Module) -> list[tuple[ast.AST, ast.Call]]:
    """Each call with the innermost function that contains it."""
    calls: dict[ast.Call, ast.AST] = {}
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            calls |= {node: scope for node in ast.walk(scope) if isinstance(node, ast.Call)}
    return [(scope, call) for call, scope in calls.items()]


def _reached(said: ast.expr, scope: ast.AST) -> list[ast.expr]:
    """An expression, and what the variables in it may hold."""
    names = {part.id for part in ast.walk(said) if isinstance(part, ast.Name)}
    assigned = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
    return [said, *[one.value for one in assigned if any(ast.unparse(target) in names for target in one.targets)]]


def _sentences(said: ast.expr) -> list[str]:
    texts = [part.value for part in ast.walk(said) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return [text for text in texts if len(text.split()) > 1]
