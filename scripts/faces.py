"""Writes the blocking faces of the client and of the library from their async classes: `make faces`.

* `async def f` waits on the loop's thread: `self._wait(self._core.f(…))`. A returned async handle gets its face.
* An async generator of public methods is copied without `async` and `await`; any other is stepped through by `_each`.
* A property and a plain method are forwarded. What the hand-written base of a face defines is left to it.
"""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

SRC = Path(__file__).resolve().parent.parent / "src"


class Face(NamedTuple):
    name: str
    base: str
    """The hand-written class below it, in `home`."""
    home: str
    sources: tuple[str, ...]
    """Its async class, then what that inherits from."""
    by_core: frozenset[str] = frozenset()
    """Methods that only the async classes need of each other."""

    @property
    def core(self) -> str:
        return self.sources[0].rpartition(".")[2]


def _client(name: str, base: str, *sources: str, by_core: Iterable[str] = ()) -> Face:
    paths = tuple([f"weftline.client.{source}" for source in sources])
    return Face(name, base, "weftline.client.sync", paths, frozenset(by_core))


FACES = {
    "weftline.client._sync": [
        _client("Budgets", "Face[AsyncBudgets]", "budgets.AsyncBudgets"),
        _client("Schedules", "Face[AsyncSchedules]", "schedules.AsyncSchedules"),
        _client("Threads", "Face[AsyncThreads]", "threads.AsyncThreads"),
        _client("Run", "RunFace", "run.AsyncRun", "awaits.RunPeople", by_core=("take", "check", "ended")),
        _client("Session", "SessionFace", "session.AsyncSession"),
        _client("Client", "ClientFace", "core.AsyncClient", by_core=("start_message",)),
        _client("OAuthClient", "OAuthFace", "oauth.AsyncOAuthClient"),
    ],
    "weftline.agent._sync": [Face("SyncRun", "RunFace[OutputT]", "weftline.agent.sync", ("weftline.agent.run.Run",))],
}
_DUNDERS = {"__aiter__": "__iter__", "__aenter__": "__enter__", "__aexit__": "__exit__"}
_STREAMS = {"AsyncGenerator": "Generator", "AsyncIterator": "Iterator"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def source_of(module: str) -> str:
    """Returns the text of a generated module."""
    faces = FACES[module]
    handles = {face.core: face.name for face in faces}
    tree = ast.Module(body=[_Written(face, handles).tree for face in faces], type_ignores=[])
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names -= set(handles.values()) | set(dir(builtins))
    origins = _origins(
        {face.home for face in faces} | {one.rpartition(".")[0] for face in faces for one in face.sources}
    )
    lines = [
        '"""Blocking faces of async classes, written by `scripts/faces.py`: change those, then `make faces`."""\n',
        "from __future__ import annotations\n",
        *[f"from {origins[name]} import {name}" for name in sorted(names) if name in origins],
        ast.unparse(ast.fix_missing_locations(tree)),
    ]
    return _ruff(_ruff("\n".join(lines), "check", "--fix", "--unsafe-fixes", "--select", "I,UP028"), "format")


class _Written:
    """A face, as a tree."""

    def __init__(self, face: Face, handles: dict[str, str]) -> None:
        self._face = face
        self._handles = handles
        by_hand = _class(f"{face.home}.{face.base.partition('[')[0]}")
        left = {node.name for node in by_hand.body if isinstance(node, Function)} | face.by_core
        cores = [_class(source) for source in face.sources]
        given = [node for core in cores for node in core.body if isinstance(node, Function)]
        methods = [node for node in given if node.name[0] != "_" or node.name in _DUNDERS]
        self._methods = [node for node in methods if _DUNDERS.get(node.name, node.name) not in left]
        self._own = {node.name for node in self._methods}
        self._overloaded = {node.name for node in methods if _is("overload", node)}
        about = ast.get_docstring(by_hand, clean=False) or _paragraph(cores[0])
        body = [_text(about), *self._parts(given), *map(self._method, self._methods)]
        bases: list[ast.expr] = [ast.parse(face.base, mode="eval").body]
        self.tree = ast.ClassDef(face.name, bases, keywords=[], body=body, decorator_list=[])

    def _parts(self, given: list[Function]) -> Iterator[ast.stmt]:
        """Yields a property for each part of the core that has a face: `client.budgets`."""
        for node in [one for init in given if init.name == "__init__" for one in init.body]:
            match node:
                case ast.Assign([ast.Attribute(ast.Name("self"), name)], ast.Call(ast.Name(part))):
                    if (handle := self._handles.get(part)) is not None:
                        body = f"return {handle}(self._core.{name}, self._wait)"
                        yield from ast.parse(f"@property\ndef {name}(self) -> {handle}: {body}").body
                case _:
                    pass

    def _method(self, node: Function) -> ast.stmt:
        renamed = _Renamed(self._handles | _STREAMS).visit(deepcopy(node))
        body: list[ast.stmt] = [ast.Expr(ast.Constant(...))]
        if not _is("overload", node):
            text = _paragraph(node)
            if text and "\n\n" in (ast.get_docstring(node) or ""):
                text += f" See `{self._face.core}.{node.name}`."
            body = [_text(_wrapped(text))] if text else []
            body += self._body(node)
        name, decorators = _DUNDERS.get(node.name, node.name), node.decorator_list
        return ast.FunctionDef(name, renamed.args, body, decorators, renamed.returns)

    def _body(self, node: Function) -> list[ast.stmt]:
        inside = list(ast.walk(node))
        steps = any(isinstance(one, ast.Yield) for one in inside)
        is_private = any(isinstance(one, ast.Attribute) and one.attr[0] == "_" for one in inside)
        if node.name in _DUNDERS or (steps and not is_private):
            copied = _Blocking(self._own).visit(deepcopy(node))
            return copied.body[1:] if ast.get_docstring(node) else copied.body
        core = "core" if node.name in self._overloaded else "self._core"
        value = f"{core}.{node.name}" if _is("property", node) else f"{core}.{node.name}({_passed(node.args)})"
        returned = ast.unparse(node.returns) if node.returns else ""
        kind = returned.partition("[")[0]
        if steps or kind in _STREAMS:
            value = f"self._each({value})"
        elif isinstance(node, ast.AsyncFunctionDef):
            value = f"self._wait({value})"
        if kind in self._handles:
            value = f"{self._handles[kind]}({value}, self._wait)"
        # An implementation cannot call the overloads of another with its own, wider types.
        first = "core: Any = self._core\n" if node.name in self._overloaded else ""
        return ast.parse(first + (value if returned == "None" else f"return {value}")).body


class _Renamed(ast.NodeTransformer):
    def __init__(self, renames: dict[str, str]) -> None:
        self._renames = renames

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._renames.get(node.id, node.id))


class _Blocking(ast.NodeTransformer):
    """Takes `async` and `await` out of a body that calls public methods only."""

    def __init__(self, own: set[str]) -> None:
        self._own = own

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        return ast.For(node.target, node.iter, node.body, node.orelse)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        self.generic_visit(node)
        return ast.With(node.items, node.body)

    def visit_Await(self, node: ast.Await) -> Any:
        self.generic_visit(node)
        waits = ast.unparse(node.value).startswith("self._core.")
        return ast.Call(ast.parse("self._wait", mode="eval").body, [node.value], []) if waits else node.value

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        of_core = ast.unparse(node.value) == "self" and node.attr not in self._own and node.attr != "close"
        return ast.Attribute(ast.parse("self._core", mode="eval").body, node.attr) if of_core else node


def _is(decorator: str, node: Function) -> bool:
    return any(isinstance(one, ast.Name) and one.id == decorator for one in node.decorator_list)


def _passed(args: ast.arguments) -> str:
    given = [one.arg for one in [*args.posonlyargs, *args.args] if one.arg != "self"]
    given += [f"{one.arg}={one.arg}" for one in args.kwonlyargs]
    return ", ".join([*given, *([f"**{args.kwarg.arg}"] if args.kwarg else [])])


def _paragraph(node: Function | ast.ClassDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n\n")[0]


def _wrapped(text: str) -> str:
    """Returns `text` as it fits into a method's docstring."""
    lines = textwrap.wrap(text, width=105)
    return lines[0] if len(lines) == 1 else "\n".join([*lines, ""])


def _text(text: str) -> ast.stmt:
    return ast.Expr(ast.Constant(text))


def _tree(module: str) -> ast.Module:
    return ast.parse(SRC.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))


def _classes(module: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in _tree(module).body if isinstance(node, ast.ClassDef)}


def _class(path: str) -> ast.ClassDef:
    module, _, name = path.rpartition(".")
    return _classes(module)[name]


def _origins(modules: Iterable[str]) -> dict[str, str]:
    """Returns where the names that these modules use come from; a name of their own from themselves."""
    found = {"Generator": "collections.abc", "Iterator": "collections.abc"}
    for module in sorted(modules):
        for node in ast.walk(_tree(module)):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {one.asname or one.name: node.module for one in node.names}
    for module in modules:
        for node in _tree(module).body:
            match node:
                case ast.ClassDef(name) | ast.AnnAssign(ast.Name(name)) | ast.Assign([ast.Name(name)]):
                    found[name] = module
                case _:
                    pass
    return found


def _ruff(text: str, *args: str) -> str:
    command = [sys.executable, "-m", "ruff", *args, "--quiet", "--stdin-filename", "src/weftline/_sync.py", "-"]
    return subprocess.run(command, input=text, capture_output=True, check=True, text=True, cwd=SRC.parent).stdout


def path_of(module: str) -> Path:
    return SRC.joinpath(*module.split(".")).with_suffix(".py")


if __name__ == "__main__":
    for module in FACES:
        path_of(module).write_text(source_of(module), encoding="utf-8")
