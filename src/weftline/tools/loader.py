"""Loads Python code that a command was given, and finds the tools of a server: built in, installed, and from a file."""

from __future__ import annotations

import hashlib
import importlib
import logging
import re
import sys
import traceback
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from weftline.errors import WeftlineError
from weftline.net.dial import Dialer
from weftline.plugins import entry_points
from weftline.text.suggestions import did_you_mean
from weftline.tools.base import Tool
from weftline.tools.builtin import builtin_tools
from weftline.tools.builtin.fetch import fetch_tool
from weftline.tools.function import FunctionTool

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


ENTRY_POINT_GROUP = "weftline.tools"

_log = logging.getLogger("weftline.tools")


_MAX_NAMED = 12


class Project(Struct, frozen=True):
    """The code that a command was given."""

    given: str
    modules: tuple[ModuleType, ...]
    only: str | None = None
    """The name after the colon, if one was given: nothing else counts."""

    def public(self, module: ModuleType) -> dict[str, object]:
        """Returns the values that count, by variable: public ones, or those in `__all__`, imported ones included."""
        if self.only is not None:
            if self.only not in vars(module):
                names = [name for name in vars(module) if not name.startswith("_")]
                near = did_you_mean(self.only, names) or f" It has {', '.join(names[:_MAX_NAMED]) or 'none'}."
                raise bad_file(f"{where(module)} has no name {self.only!r}.{near}")
            return {self.only: vars(module)[self.only]}
        exported: object = getattr(module, "__all__", None)
        listed = cast("list[object]", exported) if isinstance(exported, list | tuple) else None
        return {
            name: value
            for name, value in vars(module).items()
            if (not name.startswith("_") if listed is None else name in listed)
        }

    def without(self, what: str, remedy: str) -> WeftlineError:
        """Returns the error for code in which nothing was found."""
        if self.only is not None:
            (module,) = self.modules
            value = vars(module)[self.only]
            return bad_file(
                f"{self.only!r} in {where(module)} is of the type {type(value).__name__}, not one of the {what}."
            )
        if len(self.modules) == 1:
            return bad_file(f"{where(self.modules[0])} has no {what}: {remedy}.")
        looked = ", ".join(Path(where(one)).name for one in self.modules) or "no Python files"
        return bad_file(f"{self.given} has no {what}: {remedy}. It has {looked}.")


def short_name(given: str | Path) -> str:
    """Returns the name of a file, folder or module by which runs name its tools: `@name/tool`."""
    path, module, _ = _parts(str(given))
    name = path.resolve().stem if path is not None else (module or "").rpartition(".")[2]
    return name.lower()


def load_tools(given: str | Path) -> dict[str, FunctionTool]:
    """Returns the tools of the code that a command was given, by name, in the order of the code.

    Raises:
        WeftlineError: with code `bad_tools_file` and one sentence that says what is wrong.
    """
    with imported(given) as project:
        tools = tools_of(project)
        if not tools:
            raise project.without("tools", "decorate a function with @weftline.tool")
        return tools


@contextmanager
def imported(given: str | Path) -> Generator[Project]:
    """Imports code as `given` names it.

    The working directory and the folder of a file are on the import path, as for a script. A file in a package is
    imported as a module of it, so that relative imports work; another is imported afresh under a private name, so that
    two files of the same name do not collide, and the import is undone if the block fails.
    """
    path, dotted, only = _parts(str(given))
    _add_to_path(Path.cwd(), first=False)
    before = dict(sys.modules)
    try:
        if path is None:
            yield Project(str(given), (_module(cast(str, dotted)),), only)
        elif path.is_dir():
            yield Project(str(given), tuple([_of_folder(file) for file in _files_in(path)]), only)
        else:
            yield Project(str(given), (_of_file(path),), only)
    except WeftlineError:
        private = [name for name in sys.modules if name.startswith(_PRIVATE)]
        for name in [name for name in private if sys.modules[name] is not before.get(name)]:
            del sys.modules[name]
            if name in before:
                sys.modules[name] = before[name]
        raise


_PRIVATE = "_weftline_tools_"


def _parts(given: str) -> tuple[Path | None, str | None, str | None]:
    """Returns the path or the dotted name, and the name after the colon."""
    path = Path(given).expanduser()
    if path.exists():
        return path, None, None
    rest, colon, only = given.rpartition(":")
    if colon and only.isidentifier():
        path, given = Path(rest).expanduser(), rest
        if path.is_file():
            return path, None, only
    if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", given) and not given.endswith(".py"):
        return None, given, only if colon else None
    return path, None, only if colon else None


def _files_in(folder: Path) -> list[Path]:
    """Returns the files of a folder that may have agents and tools: none of its tests and private ones."""
    found = [one for one in sorted(folder.glob("*.py")) if not one.name.startswith(("_", "test_", "conftest."))]
    return [*([folder / "__init__.py"] if _is_package(folder) else []), *found]


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _add_to_path(folder: Path, *, first: bool) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0 if first else 1, str(folder))


def _of_folder(file: Path) -> ModuleType:
    """Imports one of several files. They may import each other, so each has its own name if that is free."""
    file = file.resolve()
    if _is_package(file.parent):
        return _of_file(file)
    _add_to_path(file.parent, first=True)
    from importlib.machinery import PathFinder

    loaded = sys.modules.get(file.stem)
    found = getattr(loaded, "__spec__", None) if loaded is not None else PathFinder.find_spec(file.stem)
    return _module(file.stem, file) if found is not None and found.origin == str(file) else _of_file(file)


def _of_file(path: Path) -> ModuleType:
    file = path.resolve()
    if not file.is_file():
        near = file.with_name(f"{file.name}.py")
        raise bad_file(f"There is no file {file}." + (f" Did you mean {near.name}?" if near.is_file() else ""))
    if not _is_package(file.parent):
        _add_to_path(file.parent, first=True)
        digest = hashlib.blake2b(str(file).encode(errors="surrogateescape"), digest_size=8).hexdigest()
        return _import_file(file, _PRIVATE + digest)
    above, names = file.parent, [] if file.name == "__init__.py" else [file.stem]
    while _is_package(above):
        names.insert(0, above.name)
        above = above.parent
    _add_to_path(above, first=True)
    name = ".".join(names)
    module = _module(name, file)
    if module.__file__ != str(file):
        raise bad_file(f"{file} would be the module {name}, which is {where(module)}: rename its package.")
    return module


def _module(name: str, file: Path | None = None) -> ModuleType:
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise _failed(str(file or name), error) from error
    from pkgutil import iter_modules

    above = name.rpartition(".")[0]
    package = sys.modules.get(above)
    inside = [one.name for one in iter_modules(package.__path__)] if package is not None else []
    if inside:
        raise bad_file(f"There is no module {name}: {above} has {', '.join(inside)}.")
    raise bad_file(f"There is no file, folder or module {name}, seen from {Path.cwd()}.")


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


def tools_of(project: Project, *, unique: bool = True) -> dict[str, FunctionTool]:
    """Returns the tools among the global names of imported code, checked. Raises `WeftlineError` (`bad_tools_file`).

    Tools that share a name are refused if names have to be `unique`, and left out otherwise, with a line in the log.
    """
    tools: dict[str, FunctionTool] = {}
    shared: set[str] = set()
    for file, found in _all_tools(project):
        if tools.setdefault(found.name, found) is not found:
            if unique:
                raise bad_file(f"{file} has two tools named {found.name}.")
            shared.add(found.name)
        try:
            _ = found.spec
        except TypeError as error:
            raise bad_file(f"{file}: {error}.") from error
    for name in sorted(shared):
        _log.warning(
            "%s has several tools named %s: agents have their own, but runs cannot name it", project.given, name
        )
        del tools[name]
    return tools


def _import_file(file: Path, name: str) -> ModuleType:
    try:
        source = file.read_bytes()
    except OSError as error:
        raise bad_file(f"{file} cannot be read: {error.strerror}.") from None
    module = ModuleType(name)
    module.__file__ = str(file)
    # Dataclasses and pydantic look up a class's module by name.
    sys.modules[name] = module
    try:
        exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        raise _failed(str(file), error) from error
    return module


def _failed(what: str, error: BaseException) -> WeftlineError:
    """Returns the error for code that cannot be imported; it names the file and the line, if they are known."""
    if isinstance(error, SyntaxError):
        at = f" on line {error.lineno}" if error.filename == what else f" in {error.filename}:{error.lineno}"
        return bad_file(f"{what} has a syntax error{at}: {error.msg}.")
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        folder = Path(what).parent
        return bad_file(f"{what} has a relative import, but {folder} is not a package: it has no __init__.py.")
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(_NOT_THEIRS)]
    own = [one.lineno for one in frames if one.filename == what]
    at = f" on line {own[-1]}" if own else f" in {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    reason = (str(error).splitlines() or [""])[0].rstrip(".")
    return bad_file(f"{what} failed to import{at}: {type(error).__name__}: {reason}.")


_NOT_THEIRS = ("<frozen", __file__, str(Path(importlib.__file__).parent))


def where(module: ModuleType) -> str:
    """Returns the file of a module, for messages."""
    return module.__file__ or module.__name__


def _all_tools(project: Project) -> Iterator[tuple[str, FunctionTool]]:
    for module in project.modules:
        # All of them: a tools file may keep a tool under a private name.
        values = vars(module).values() if project.only is None else _each(project.public(module)[project.only])
        for found in _tools_in(values):
            yield where(module), found


def _each(value: object) -> Iterable[object]:
    return cast("Iterable[object]", value) if isinstance(value, list | tuple) else (value,)


def _tools_in(values: Iterable[object]) -> list[FunctionTool]:
    found: list[FunctionTool] = []
    for value in values:
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
            found = _tools_in(vars(value).values()) if isinstance(value, ModuleType) else []
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


def server_tools(
    path: str | Path | None,
    *,
    pages: Dialer,
    app: str | Path | None = None,
    app_tools: Mapping[str, Tool] | None = None,
) -> dict[str, Tool]:
    """Returns the tools that runs may name: built in, installed by packages, and those at `path`, which win.

    So do `app_tools`, those of the code at `app`, which also has agents.

    Each also has a qualified name, which is the only form that some clients can send: `@weftline/tool`,
    `@package/tool`, and for code `@name-of-the-file/tool`; see `weftline.tools.loader.short_name`.
    """
    tools: dict[str, Tool] = {}
    for name, tool in {**builtin_tools(), "fetch": fetch_tool(pages)}.items():
        tools[name] = tools[f"@weftline/{name}"] = tool
    tools |= installed_tools()
    if path is not None:
        for name, tool in load_tools(path).items():
            tools[name] = tools[f"@{short_name(path)}/{name}"] = tool
    if app is not None:
        for name, tool in (app_tools or {}).items():
            tools[name] = tools[f"@{short_name(app)}/{name}"] = tool
    return tools


class LoadedTool(Struct):
    """A tool of the server, as a run names it: `{"kind": "server", "name": …}`."""

    kind: str
    name: str
    names: list[str]
    """All names that work, `name` first."""
    effect: str
    description: str


def loaded_tools(tools: Mapping[str, Tool]) -> list[LoadedTool]:
    """Returns each tool once, by name."""
    return [
        LoadedTool("server", names[0], names, tools[names[0]].effect, tools[names[0]].spec.description)
        for names in tool_names(tools)
    ]


def tool_names(tools: Mapping[str, Tool]) -> list[list[str]]:
    """Returns the names of each tool, unqualified ones first, sorted."""
    found: dict[int, list[str]] = {}
    for name, tool in tools.items():
        found.setdefault(id(tool), []).append(name)
    each = [sorted(names, key=lambda name: (name.startswith("@"), name)) for names in found.values()]
    return sorted(each, key=lambda names: names[0].lstrip("@"))
