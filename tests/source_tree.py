"""Our own source, read as a tree: its modules, and what each of them imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

SRC = Path(__file__).resolve().parent.parent / "src"

PUBLIC_PAGES = ("weftline", "weftline.runs", "weftline.tools")
"""They tell type checkers about names that are loaded on first use, some of them from above."""


class Import(NamedTuple):
    module: str
    line: int


class Module(NamedTuple):
    name: str
    path: Path
    tree: ast.Module

    @property
    def part(self) -> str:
        """The row of `MAY_IMPORT` that this module falls under."""
        pieces = self.name.split(".")
        return ".".join(pieces[:2]) if len(pieces) > 1 else f"{self.name}.__init__"

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def parse(path: Path, *, root: Path) -> Module:
    pieces = path.relative_to(root).with_suffix("").parts
    name = ".".join(pieces[:-1] if pieces[-1] == "__init__" else pieces)
    return Module(name, path, ast.parse(path.read_text(encoding="utf-8"), str(path)))


def package_modules(root: Path) -> list[Module]:
    return [parse(path, root=root) for path in sorted((root / "weftline").rglob("*.py"))]


@cache
def exists(name: str, *, root: Path) -> bool:
    place = root.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or place.is_dir()


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def nodes(module: Module) -> list[ast.AST]:
    """All that a module consists of, looked up once for all questions."""
    if module.path not in _NODES:
        _NODES[module.path] = list(ast.walk(module.tree))
    return _NODES[module.path]


_NODES: dict[Path, list[ast.AST]] = {}


def untyped(tree: ast.AST) -> Iterator[ast.AST]:
    """All but what only type checkers read."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and is_type_checking(child):
            for other in child.orelse:
                yield from untyped(other)
            continue
        yield child
        yield from untyped(child)


def imports(module: Module, *, root: Path = SRC) -> list[Import]:
    """Every module that `module` imports, by its absolute name."""
    if module.path not in _IMPORTS:
        _IMPORTS[module.path] = list(_imports(module, root))
    return _IMPORTS[module.path]


_IMPORTS: dict[Path, list[Import]] = {}


def _imports(module: Module, root: Path) -> Iterator[Import]:
    for node in untyped(module.tree) if module.name in PUBLIC_PAGES else nodes(module):
        match node:
            case ast.Import(names=names):
                yield from (Import(alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(module=target, names=names, level=level):
                base = target or ""
                if level:
                    package = module.package.split(".")
                    base = ".".join([*package[: len(package) - level + 1], *([target] if target else [])])
                for alias in names:
                    whole = f"{base}.{alias.name}"
                    yield Import(whole if exists(whole, root=root) else base, node.lineno)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(name, node.lineno)
            case _:
                pass


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
