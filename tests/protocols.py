"""What a protocol consists of, and what a conformance suite uses of it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from inspect import Parameter, getmembers, iscoroutinefunction, signature
from pathlib import Path
from pkgutil import iter_modules
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, get_args

from msgspec import Struct


def members_of(*protocols: type) -> set[str]:
    """The public names that our protocols declare, themselves or through those that they extend."""
    ours = [one for protocol in protocols for one in protocol.__mro__ if one.__module__.startswith("weftline.")]
    declared = {name for one in ours for name in (*vars(one), *vars(one).get("__annotations__", ()))}
    return {name for name in declared if not name.startswith("_")}


class Option(NamedTuple):
    """A parameter that a caller may leave out."""

    method: str
    name: str


def options_of(*protocols: type) -> set[Option]:
    """The parameters with a default of all methods that our protocols declare."""
    return {Option(method, name) for method, found in _signatures(*protocols).items() for name in found.defaults}


class _Signature(Struct):
    names: list[str]
    """The names of the parameters, in order."""
    defaults: dict[str, Any]


def _signatures(*protocols: type) -> dict[str, _Signature]:
    found: dict[str, _Signature] = {}
    for name in members_of(*protocols):
        method = next((getattr(one, name) for one in protocols if hasattr(one, name)), None)
        if isinstance(method, FunctionType):
            taken = [one for one in signature(method).parameters.values() if one.name != "self"]
            defaults = {one.name: one.default for one in taken if one.default is not Parameter.empty}
            found[name] = _Signature([one.name for one in taken], defaults | _typed_options(method))
    return found


def _typed_options(method: FunctionType) -> dict[str, Any]:
    """The keys of the `TypedDict` that a method takes as its keywords, none of which has to be given."""
    variable = [one for one in signature(method).parameters.values() if one.kind is Parameter.VAR_KEYWORD]
    (options,) = get_args(eval(variable[0].annotation, method.__globals__)) if variable else (None,)
    return {} if options is None else dict.fromkeys(options.__annotations__)


class Suite(Struct):
    """A package of checks, each a function of one argument."""

    package: ModuleType
    subject: str
    """The type of that argument."""

    def uses(self, of: Collection[str]) -> set[str]:
        """The members that it uses of objects with these names: `engine` stands for `bench.engine` too."""
        attributes = (node for node in self._nodes() if isinstance(node, ast.Attribute))
        return {node.attr for node in attributes if _last_name(node.value) in of}

    def gives(self, of: Collection[str], *protocols: type) -> set[Option]:
        """The options that it gives a value other than the default when it calls methods of objects with these
        names.
        """
        signatures = _signatures(*protocols)
        given: set[Option] = set()
        for call in [node for node in self._nodes() if isinstance(node, ast.Call)]:
            called = call.func
            if isinstance(called, ast.Attribute) and _last_name(called.value) in of and called.attr in signatures:
                found = signatures[called.attr]
                values = [*zip(found.names, call.args, strict=False)]
                values += [(one.arg, one.value) for one in call.keywords if one.arg is not None]
                given |= {
                    Option(called.attr, name)
                    for name, value in values
                    if name in found.defaults and not _is_constant(value, found.defaults[name])
                }
        return given

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

    def _nodes(self) -> Iterator[ast.AST]:
        for path in self._paths():
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))

    def _paths(self) -> Iterator[Path]:
        for folder in self.package.__path__:
            yield from Path(folder).glob("*.py")


def _is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
