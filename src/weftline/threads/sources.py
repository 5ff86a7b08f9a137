"""Where in a file something is written: problems name the line, which is found in the file's syntax tree."""

from __future__ import annotations

import ast
import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from weftline.text.suggestions import did_you_mean

_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_FIRST = {"SideConfig": "prompt", "PromptIncludePart": "prompt", "PromptEnvPart": "property", "define_hook": "hook"}
"""The field that the first positional argument of a call is; `name` for the others."""
_OURS = f"{Path(__file__).parent}{os.sep}"
_MISSING = re.compile(r"[Mm]issing (?:\d+ )?required [\w -]*?arguments?:? (.+)")
_MAKERS = ("define_", "Missing")
_UNKNOWN = re.compile(r"[Uu]nexpected keyword argument '(\w+)'")


class Problem(Struct, frozen=True, kw_only=True, order=True):
    """Something wrong with a file: `desk/agents/prompts/triage.py:7: prompt "triage": tools[1]: there is no …`."""

    file: str
    line: int
    about: str = ""
    """The definition: `prompt "triage"`."""
    field: str = ""
    """Its field: `tools[1]`."""
    message: str

    def __str__(self) -> str:
        said = ": ".join([one for one in (self.about, self.field, self.message) if one])
        return f"{self.file}:{self.line}: {said}"


class Source:
    """The syntax tree of one file, in which fields of definitions are found."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        try:
            self.tree: ast.Module = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            self.tree = ast.Module([], [])
        self.imported = {name for node in self.tree.body for name in _imported(node)}
        """The names that the file only imports."""

    def line_of(self, variable: str, path: str = "") -> int:
        """Returns the line of a field of the definition in `variable`; that of the definition if it is not there."""
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == variable:
                return _in_function(node, path)
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            if any(isinstance(one, ast.Name) and one.id == variable for one in targets):
                value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                return node.lineno if value is None else _walk(value, path)
        return 1

    def line_in_call(self, line: int, path: str) -> int:
        """Returns the line of a field of the definition that is made on `line`."""
        calls = [one for one in ast.walk(self.tree) if isinstance(one, ast.Call) and one.lineno == line]
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = {one.lineno for one in node.decorator_list} | {node.lineno}
                if line in lines:
                    return _in_function(node, path)
        return _walk(calls[0], path) if calls else line


def import_problem(error: BaseException, file: Path, shown: str) -> tuple[int, str]:
    """Returns the line of `file` on which its import failed, and what to say of it."""
    if isinstance(error, SyntaxError) and error.filename:
        where = "" if error.filename == str(file) else f" in {error.filename}:{error.lineno}"
        return (error.lineno or 1) if not where else 1, f"syntax error{where}: {error.msg}"
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith("<frozen")]
    own = [one.lineno or 1 for one in frames if one.filename == str(file)]
    theirs = [one for one in frames if not one.filename.startswith(_OURS)]
    deeper = theirs[-1] if theirs and theirs[-1].filename != str(file) else None
    at = f" (in {deeper.filename}:{deeper.lineno})" if deeper is not None and own else ""
    reason = (str(error).splitlines() or [""])[0].rstrip(".")
    if isinstance(error, TypeError) and (unknown := _UNKNOWN.search(reason)):
        near = did_you_mean(unknown[1], _known_fields())
        return (own or [1])[
            -1
        ], f"there is no field {unknown[1]!r}.{near}" if near else f"there is no field {unknown[1]!r}"
    if isinstance(error, TypeError) and reason.startswith(_MAKERS) and (missing := _MISSING.search(reason)):
        return (own or [1])[-1], f"{missing[1]} is missing" if " and " not in missing[
            1
        ] else f"{missing[1]} are missing"
    return (own or [1])[-1], f"failed to import: {type(error).__name__}: {reason}{at}"


def _known_fields() -> set[str]:
    from weftline.threads.definitions import agents, endpoints, handlers, models, prompts

    structs = [
        value
        for module in (agents, endpoints, handlers, models, prompts)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Struct)
    ]
    return {name for one in structs for name in one.__struct_fields__ if name not in ("declares_effect", "packed")}


def _in_function(node: ast.FunctionDef | ast.AsyncFunctionDef, path: str) -> int:
    field, _, rest = path.partition(".")
    if field == "args" and rest:
        for one in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            if one.arg == rest.partition(".")[0]:
                return one.lineno
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and path and _find(decorator, path) is not decorator:
            return _walk(decorator, path)
    return node.lineno


def _walk(node: ast.expr, path: str) -> int:
    return _find(node, path).lineno


def _find(node: ast.expr, path: str) -> ast.expr:
    """Returns the innermost node on the way of `path`, as far as it is written out."""
    for index, name in _STEP.findall(path):
        found = _item(node, int(index)) if index else _field(node, name)
        if found is None:
            return node
        node = found
    return node


def _item(node: ast.expr, index: int) -> ast.expr | None:
    return node.elts[index] if isinstance(node, ast.List | ast.Tuple) and index < len(node.elts) else None


def _field(node: ast.expr, name: str) -> ast.expr | None:
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == name:
                return keyword.value
        first = _FIRST.get(node.func.id, "name") if isinstance(node.func, ast.Name) else "name"
        return node.args[0] if node.args and first == name else None
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == name:
                return value
    return None


def _imported(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        for one in node.names:
            yield one.asname or one.name.partition(".")[0]
