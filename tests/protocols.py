"""What a protocol consists of, and what a conformance suite uses of it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from inspect import getmembers, iscoroutinefunction, signature
from pathlib import Path
from pkgutil import iter_modules
from types import FunctionType, ModuleType

from msgspec import Struct


def members_of(*protocols: type) -> set[str]:
    """The public names that our protocols declare, themselves or through those that they extend."""
    ours = [one for protocol in protocols for one in protocol.__mro__ if one.__module__.startswith("weftline.")]
    declared = {name for one in ours for name in (*vars(one), *vars(one).get("__annotations__", ()))}
    return {name for name in declared if not name.startswith("_")}


class Suite(Struct):
    """A package of checks, each a function of one argument."""

    package: ModuleType
    subject: str
    """The type of that argument."""

    def uses(self, of: Collection[str]) -> set[str]:
        """The members that it uses of objects with these names: `engine` stands for `bench.engine` too."""
        nodes = (node for path in self._paths() for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        attributes = (node for node in nodes if isinstance(node, ast.Attribute))
        return {node.attr for node in attributes if _last_name(node.value) in of}

    def functions(self) -> set[str]:
        """The names of all functions that look like a check."""
        found: set[str] = set()
        for module in iter_modules(self.package.__path__, f"{self.package.__name__}."):
            for name, one in getmembers(__import__(module.name, fromlist=["_"]), iscoroutinefunction):
                assert isinstance(one, FunctionType)
                takes = [parameter.annotation for parameter in signature(one).parameters.values()]
                if takes == [self.subject] and not name.startswith("_"):
                    found.add(name)
        return found

    def _paths(self) -> Iterator[Path]:
        for folder in self.package.__path__:
            yield from Path(folder).glob("*.py")


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
