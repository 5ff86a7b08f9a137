"""Packs an agent of a folder, with all that it reaches, as a distribution: `weftline pack desk:triage --out tea`.

A package has the folder's files in the folder's places, so that their relative imports work, and reads them as a folder
is read. It takes the files of definitions that the agent reaches, and the plain Python that these import.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from weftline._version import __version__
from weftline.errors import Conflict, Issue, WeftlineError
from weftline.text.suggestions import did_you_mean
from weftline.threads import building
from weftline.threads.checking import usual_tools
from weftline.threads.definitions.agents import AgentDefinition
from weftline.threads.definitions.base import PACKAGE_ID, Kind
from weftline.threads.definitions.handlers import ToolDefinition
from weftline.threads.definitions.models import ModelDefinition
from weftline.threads.definitions.prompts import PromptDefinition, PromptIncludePart, entry_name
from weftline.threads.packages import PackedExports, PackedMeta, is_packed
from weftline.threads.project import Project, ProjectError, read_project
from weftline.threads.registry import KINDS, is_external

_STATE_TYPES = ("ThreadState", "SyncThreadState")
_STATE_NAMES = ("state", "parent_state", "child_state")
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?")


class PackError(WeftlineError):
    """An agent that cannot be packed; `issues` says why, each with its definition or file."""

    default_code = "bad_definition"

    def __init__(self, agent: str, issues: Sequence[Issue]) -> None:
        self.issues = tuple(issues)
        listed = [f"{one.path}: {one.message}" if one.path else one.message for one in issues]
        super().__init__("\n  ".join([f'The agent "{agent}" cannot be packed:', *listed]))


class Packed(Struct, frozen=True):
    """What a package was written of: definitions by kind, and files, relative to the folder."""

    definitions: dict[str, tuple[str, ...]]
    files: tuple[str, ...]


def packed_folder(root: str | Path, *, package_id: str, **about: Any) -> PackedExports:
    """Returns the definitions of a folder as a package. `about` are fields of `PackedMeta`.

    Raises:
        ProjectError: if anything is wrong with a file.
    """
    project = read_project(root, packages=())
    if project.problems:
        raise ProjectError(project.root, project.problems)
    found = project.registry
    return PackedExports(
        meta=PackedMeta(package_id=package_id, **about),
        models=found.models,
        prompts=found.prompts,
        agents=found.agents,
        tools=found.tools,
        hooks=found.hooks,
        effects=found.effects,
        thread_endpoints=found.endpoints,
    )


def pack(
    project: Project,
    agent: str,
    out: Path,
    *,
    package_id: str,
    version: str = "0.1.0",
    requires: Iterable[str] = (),
    endpoints: bool = False,
) -> Packed:
    """Writes a distribution with an agent, and with everything that it reaches, to a new folder.

    `requires` are names that the folder which uses the package will have, such as a model's; they are not packed. With
    `endpoints`, all endpoints of the folder are.

    Raises:
        PackError: if something reachable cannot be found, or uses what only its host has (`state.host`).
        Conflict: if there is anything in the folder `out`.
    """
    if not PACKAGE_ID.fullmatch(package_id):
        raise _refused(agent, f"{package_id!r} cannot be the id of a package: use letters, digits, _ and -")
    if not _VERSION.fullmatch(version):
        raise _refused(agent, f"{version!r} is not a version, such as 1.2.0")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Conflict(f"{out} is not empty: name a new folder.")
    closure = _Closure(project, frozenset(requires))
    closure.take(agent, endpoints=endpoints)
    if closure.issues:
        raise PackError(agent, closure.issues)
    return _Writing(project, agent, closure, out, package_id=package_id, version=version).write()


def _refused(agent: str, message: str) -> PackError:
    return PackError(agent, [Issue("", message)])


class _Closure:
    """What an agent reaches: definitions, and the files that they are in or import."""

    def __init__(self, project: Project, requires: frozenset[str]) -> None:
        self.issues: list[Issue] = []
        self.definitions: dict[tuple[Kind, str], Any] = {}
        self.requires = set(requires)
        self.files: dict[Path, ast.Module | None] = {}
        """With their syntax trees, if they are Python."""
        self._project = project
        self._registry = project.registry
        self._waiting: list[tuple[Kind, str]] = []
        self._root = project.root.absolute()

    def take(self, agent: str, *, endpoints: bool) -> None:
        if agent not in self._registry.agents:
            near = did_you_mean(agent, self._registry.agents)
            raise _refused(agent, f"there is no such agent in {self._project.root}.{near}")
        self._waiting.append(("agent", agent))
        if endpoints:
            own = [key for key, one in self._registry.endpoints.items() if not is_packed(one)]
            self._waiting.extend([("endpoint", key) for key in own])
        while self._waiting:
            kind, name = self._waiting.pop()
            if (kind, name) not in self.definitions:
                self.definitions[kind, name] = definition = self._registry.table(kind)[name]
                self._follow(f'{kind} "{name}"', definition)
                self._take_files(kind, name)

    def _follow(self, about: str, one: Any) -> None:
        """Goes on with what a definition names."""
        if isinstance(one, AgentDefinition):
            for side in one.sides.values():
                self._reach(about, "prompt", side.prompt)
                for tool in (side.stop_tool, *[bound.name for bound in side.bindings.values()]):
                    if tool is not None:
                        self._reach(about, "tool", tool)
        if isinstance(one, AgentDefinition | PromptDefinition):
            for id in one.hooks or ():
                self._reach(about, "hook", id)
        if isinstance(one, PromptDefinition):
            if one.model and ":" not in one.model:
                self._reach(about, "model", one.model)
            for part in one.parts:
                if isinstance(part, PromptIncludePart):
                    self._reach(about, "prompt", part.prompt)
            for entry in one.entries:
                self._call(about, entry)
        elif isinstance(one, ToolDefinition):
            for name in one.uses or ():
                self._call(about, name)
        elif isinstance(one, ModelDefinition):
            for name in one.fallbacks:
                self._reach(about, "model", name)

    def _reach(self, about: str, kind: Kind, name: str) -> None:
        if name in self.requires:
            return
        found = self._registry.find(kind, name)
        if found is None:
            near = did_you_mean(name, self._registry.table(kind))
            self.issues.append(Issue(about, f'there is no {kind} "{name}".{near}'))
        else:
            self._go_on(kind, name, found)

    def _call(self, about: str, entry: Any) -> None:
        name = entry_name(entry)
        if name in self.requires or is_external(name):
            return
        found = self._registry.callable(entry)
        if found is not None:
            self._go_on(KINDS[type(found)], name, found)
        elif name not in usual_tools() and not name.startswith("@"):
            near = did_you_mean(name, self._registry.callable_names)
            self.issues.append(Issue(about, f'there is no tool, prompt or agent "{name}".{near}'))

    def _go_on(self, kind: Kind, name: str, found: object) -> None:
        if is_packed(found):
            self.requires.add(name)  # it is in a package already
        else:
            self._waiting.append((kind, name))

    def _take_files(self, kind: Kind, name: str) -> None:
        """Takes the file of a definition and the files that it imports, and goes on with the effects that they name."""
        first = Path(self._project.origins[kind, name].file).absolute()
        waiting, seen = [first], set[Path]()
        while waiting:
            file = waiting.pop()
            if file in seen:
                continue
            seen.add(file)
            if file not in self.files:
                self.files[file] = _parsed(file)
            tree = self.files[file]
            if tree is None:
                continue
            for line in _uses_of_host(tree):
                text = f"uses state.host ({self._shown(file)}:{line}), which no package can have"
                self.issues.append(Issue(f'{kind} "{name}"', text))
            for node, imported in _relative_imports(tree):
                found = list(self._files_of(file, node, imported))
                if not found:
                    shown = f"{'.' * node.level}{node.module or ''}"
                    self.issues.append(Issue(f"{self._shown(file)}:{node.lineno}", f"there is no module {shown}"))
                waiting += found
            for text in _texts(tree):
                if text in self._registry.effects and not is_packed(self._registry.effects[text]):
                    self._waiting.append(("effect", text))

    def _files_of(self, file: Path, node: ast.ImportFrom, names: Sequence[str]) -> Iterator[Path]:
        """Yields the files that an import reads: the module, modules that are named of it, and their packages'."""
        folder = file.parents[node.level - 1]
        whole = folder.joinpath(*(node.module or "").split("."))
        for one in (whole, *[whole / name for name in names]):
            if not one.is_relative_to(self._root):
                continue
            for found in (one.with_name(f"{one.name}.py"), one / "__init__.py"):
                if found.is_file():
                    yield found
        for above in (whole, *whole.parents):
            if above.is_relative_to(self._root) and above != self._root and (init := above / "__init__.py").is_file():
                yield init

    def _shown(self, file: Path) -> str:
        return str(self._project.root / file.relative_to(self._root))

    @property
    def dependencies(self) -> list[str]:
        """The distributions that the files import, by name."""
        from importlib.metadata import packages_distributions

        known = packages_distributions()
        found: set[str] = set()
        for tree in [one for one in self.files.values() if one is not None]:
            for name in _absolute_imports(tree):
                if name not in sys.stdlib_module_names and name != "weftline":
                    found |= {one.lower() for one in known.get(name, ())}
        return sorted(found)


class _Writing:
    def __init__(
        self, project: Project, agent: str, closure: _Closure, out: Path, *, package_id: str, version: str
    ) -> None:
        self._project = project
        self._agent = agent
        self._closure = closure
        self._out = out
        self._id = package_id
        self._version = version
        self._module = package_id.replace("-", "_")

    def write(self) -> Packed:
        root = self._project.root.absolute()
        names = sorted([file.relative_to(root).as_posix() for file in self._closure.files])
        for name in names:
            target = self._out / self._module / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((root / name).read_bytes())
        (self._out / self._module / "__init__.py").write_text(self._code(), encoding="utf-8")
        (self._out / "pyproject.toml").write_text(self._pyproject(), encoding="utf-8")
        (self._out / "_build.py").write_text(Path(building.__file__).read_text(encoding="utf-8"), encoding="utf-8")
        kinds: dict[str, tuple[str, ...]] = {}
        for kind, definition in sorted(self._closure.definitions):
            kinds[kind] = (*kinds.get(kind, ()), definition)
        return Packed(kinds, tuple(names))

    def _code(self) -> str:
        agent: AgentDefinition = self._closure.definitions["agent", self._agent]
        about = {
            "package_id": self._id,
            "version": self._version,
            "agents": (self._agent,),
            "requires": tuple(sorted(self._closure.requires)),
            "title": agent.title,
            "description": agent.description,
            "author": agent.author,
            "license": agent.license,
        }
        given = "".join([f"    {name}={value!r},\n" for name, value in about.items() if value])
        return (
            f'"""The agent {self._agent}, as a package for folders of agents."""\n\n'
            "from pathlib import Path\n\nfrom weftline.threads import packed_folder\n\n"
            f"exports = packed_folder(\n    Path(__file__).parent,\n{given})\n"
        )

    def _pyproject(self) -> str:
        agent: AgentDefinition = self._closure.definitions["agent", self._agent]
        # Texts of JSON are texts of TOML.
        about = agent.description or agent.tool_description or f"The agent {self._agent}"
        return (
            '[build-system]\nrequires = []\nbuild-backend = "_build"\nbackend-path = ["."]\n\n'
            f"[project]\nname = {json.dumps(self._id)}\nversion = {json.dumps(self._version)}\n"
            f'description = {json.dumps(about)}\nrequires-python = ">=3.11"\n'
            f"dependencies = {json.dumps([f'weftline>={__version__}', *self._closure.dependencies])}\n\n"
            f'[project.entry-points."weftline.packages"]\n{self._module} = "{self._module}:exports"\n'
        )


def _parsed(file: Path) -> ast.Module | None:
    return ast.parse(file.read_text(encoding="utf-8")) if file.suffix == ".py" else None


def _relative_imports(tree: ast.Module) -> Iterator[tuple[ast.ImportFrom, list[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node, [one.name for one in node.names]


def _absolute_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from [one.name.partition(".")[0] for one in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def _texts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _uses_of_host(tree: ast.Module) -> Iterator[int]:
    """Yields the lines that read `host` of a thread's state."""
    states = {*_STATE_NAMES}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None and _is_state(node.annotation):
            states.add(node.arg)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="host") if name in states:
                yield node.lineno
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id=name), ast.Constant(value="host"), *_]):
                if name in states:
                    yield node.lineno
            case _:
                pass


def _is_state(annotation: ast.expr) -> bool:
    match annotation:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _STATE_TYPES
        case ast.Constant(value=str(text)):
            return text.rpartition(".")[2] in _STATE_TYPES
        case _:
            return False
