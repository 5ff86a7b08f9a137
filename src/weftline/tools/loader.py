"""Loads tools from a Python file given at start-up, and from installed packages."""

from __future__ import annotations

import hashlib
import logging
import re
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from weftline.errors import WeftlineError
from weftline.plugins import entry_points
from weftline.tools.function import FunctionTool

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "weftline.tools"

_log = logging.getLogger("weftline.tools")


def load_tools_file(path: str | Path) -> dict[str, FunctionTool]:
    """Imports a Python file and returns the tools among its global names, by name, in the order of the file.

    The file is imported afresh under a private module name, so two files of the same name do not collide. Tools that it
    imports from elsewhere count as its own.

    Raises:
        WeftlineError: with code `bad_tools_file` and one sentence that says what is wrong.
    """
    with imported_file(path) as module:
        tools = tools_of(module)
        if not tools:
            raise bad_file(f"{module.__file__} defines no tools; decorate a function with @weftline.tool.")
        return tools


@contextmanager
def imported_file(path: str | Path) -> Generator[ModuleType]:
    """Imports a Python file under a private module name; undoes the import if the block fails."""
    file = Path(path).expanduser().resolve()
    name = "_weftline_tools_" + hashlib.blake2b(str(file).encode(errors="surrogateescape"), digest_size=8).hexdigest()
    before = sys.modules.get(name)
    try:
        yield _import_file(file, name)
    except WeftlineError:
        sys.modules.pop(name, None)
        if before is not None:
            sys.modules[name] = before
        raise


def installed_tools() -> dict[str, FunctionTool]:
    """Returns the tools of installed packages that have entry points in the group `weftline.tools`.

    Each tool is available as `@package/tool` and, unless two packages have one of that name, as plain `tool`. An entry
    point names a tool or a module with tools; one that does not load is logged and left out.
    """
    qualified: dict[str, FunctionTool] = {}
    bare: dict[str, list[FunctionTool]] = {}
    for entry in sorted(entry_points(ENTRY_POINT_GROUP), key=lambda entry: (_package(entry), entry.name)):
        for found in _loaded(entry):
            name = f"@{_package(entry)}/{found.name}"
            if qualified.setdefault(name, found) is not found:
                _log.error("two tools are named %s; the first one is kept", name)
            elif found not in bare.setdefault(found.name, []):
                bare[found.name].append(found)
    return qualified | {name: found[0] for name, found in bare.items() if len(found) == 1}


def tools_of(module: ModuleType, *, unique: bool = True) -> dict[str, FunctionTool]:
    """Returns the tools among the global names of an imported file, checked. Raises `WeftlineError` (`bad_tools_file`).

    Tools that share a name are refused if names have to be `unique`, and left out otherwise, with a line in the log.
    """
    file = module.__file__
    tools: dict[str, FunctionTool] = {}
    shared: set[str] = set()
    for found in _tools_in(module):
        if tools.setdefault(found.name, found) is not found:
            if unique:
                raise bad_file(f"{file} has two tools named {found.name}.")
            shared.add(found.name)
        try:
            _ = found.spec
        except TypeError as error:
            raise bad_file(f"{file}: {error}.") from error
    for name in sorted(shared):
        _log.warning("%s has several tools named %s: agents have their own, but runs cannot name it", file, name)
        del tools[name]
    return tools


def _import_file(file: Path, name: str) -> ModuleType:
    try:
        source = file.read_bytes()
    except FileNotFoundError:
        raise bad_file(f"There is no file {file}.") from None
    except OSError as error:
        raise bad_file(f"{file} cannot be read: {error.strerror}.") from None
    module = ModuleType(name)
    module.__file__ = str(file)
    # Dataclasses and pydantic look up a class's module by name.
    sys.modules[name] = module
    try:
        exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)
    except SyntaxError as error:
        where = f" on line {error.lineno}" if error.filename == str(file) else f" in {error.filename}:{error.lineno}"
        raise bad_file(f"{file} has a syntax error{where}: {error.msg}.") from error
    except (Exception, SystemExit) as error:
        line = _line_of(error, file)
        where = f" on line {line}" if line else ""
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise bad_file(f"{file} failed to import{where}: {type(error).__name__}: {reason}.") from error
    return module


def _line_of(error: BaseException, file: Path) -> int | None:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return lines[-1] if lines else None


def _tools_in(module: ModuleType) -> list[FunctionTool]:
    found: list[FunctionTool] = []
    for value in vars(module).values():
        if isinstance(value, FunctionTool):
            one = cast(FunctionTool, value)
            if not any(one is other for other in found):
                found.append(one)
    return found


def _loaded(entry: EntryPoint) -> list[FunctionTool]:
    try:
        value: object = entry.load()
        if isinstance(value, FunctionTool):
            found: list[FunctionTool] = [value]
        else:
            found = _tools_in(value) if isinstance(value, ModuleType) else []
        for one in found:
            _ = one.spec
    except (Exception, SystemExit):
        _log.exception("the tools of entry point %s = %s do not load", entry.name, entry.value)
        return []
    if not found:
        _log.error("entry point %s = %s names no tool", entry.name, entry.value)
    return found


def _package(entry: EntryPoint) -> str:
    name = entry.dist.name if entry.dist is not None else entry.module.partition(".")[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def bad_file(message: str) -> WeftlineError:
    return WeftlineError(message, code="bad_tools_file")
