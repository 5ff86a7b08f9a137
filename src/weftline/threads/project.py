"""A folder of agents: finds its files, imports them, and makes a registry of what they define.

    desk/agents/models  prompts  agents  tools  hooks  effects  api      a definition per Python file
    desk/agents/*.md    skills/*/SKILL.md    AGENTS.md    schedules/*.md    evals/*.py
    desk/shared                                                          plain Python, for relative imports

A folder with nothing but `agents/helper.md` is a project too. What is wrong with one file does not hide what is wrong
with the others: `read_project` lists all of it, and `checking.load_project` raises it.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from weftline.agent.skills.discovery import Place, discover
from weftline.agent.skills.format import Skill
from weftline.errors import Issue, WeftlineError
from weftline.text.suggestions import did_you_mean
from weftline.threads.definitions.base import DefinitionError, Kind, tool_name_problem
from weftline.threads.definitions.endpoints import BadRoute, Route
from weftline.threads.definitions.handlers import EffectDefinition, ToolDefinition
from weftline.threads.importing import Generation, checking
from weftline.threads.markdown import AGENT_FIELDS, SCHEDULE_FIELDS, Markdown, agent_of, schedule_of
from weftline.threads.packages import Installed, installed_packages, package_of
from weftline.threads.registry import KINDS, TABLES, AnyDefinition, Registry, ScheduleDefinition
from weftline.threads.sources import Problem, Source, import_problem

if TYPE_CHECKING:
    from weftline.net.dial import Dialer
    from weftline.providers.catalog import Catalog

FOLDERS: dict[str, Kind] = {
    "models": "model",
    "prompts": "prompt",
    "agents": "agent",
    "tools": "tool",
    "hooks": "hook",
    "effects": "effect",
    "api": "endpoint",
}
"""The folders below `agents`, and what a file in each defines; a file in `api` may have a controller too."""
SCRIPTS = "scripts.json"
"""Scripts for the models of the provider `test` (or `scripted`), which need no network and no key."""


HOST = "host.py"
"""What belongs to the machine, such as a connection: code has its `host` as `state.host`, and no package takes it."""


class Origin(NamedTuple):
    """Where a definition was found."""

    file: str
    variable: str
    """The name of the definition in its file; empty for a Markdown file."""
    line: int


class Project(Struct, frozen=True, kw_only=True):
    """A folder of agents, as it was read. It has the definitions that could be read, and the problems of the others."""

    root: Path
    name: str
    registry: Registry
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    origins: Mapping[tuple[Kind | str, str], Origin]
    """By kind and name (for endpoints and controllers, the key of their route)."""
    sources: Mapping[str, Source | Markdown]
    """By the file of an origin."""
    evals: tuple[Path, ...] = ()
    scripts: Path | None = None
    host: Any = None
    """What the folder's `host.py` gives to its code as `state.host`."""
    generation: Generation

    def agents(self, models: Catalog, *, pages: Dialer | None = None) -> dict[str, Any]:
        """Returns the agents (`weftline.Agent`) that a person can talk to, by name, and adds the folder's models.

        `pages` dials what `fetch` reads.

        Raises:
            DefinitionError: for what cannot be run.
        """
        # By name, as agents know engines, which know servers, which know what a folder is.
        compiling = import_module(f"{__package__}.compiling")
        return compiling.agents_of(self.registry, models, scripts=self.scripts, pages=pages, host=self.host)

    def line_of(self, kind: Kind | str, name: str, field: str = "") -> tuple[str, int]:
        """Returns the file and line of a definition's field."""
        origin = self.origins.get((kind, name))
        if origin is None:
            return str(self.root), 1
        source = self.sources.get(origin.file)
        return origin.file, origin.line if source is None else source.line_of(origin.variable, field)


class ProjectError(WeftlineError):
    """A folder with mistakes; `problems` has all of them."""

    default_code = "bad_definition"

    def __init__(self, root: Path, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        self.issues = tuple([Issue(f"{one.file}:{one.line}", one.message) for one in problems])
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n  ".join([f"{root} has {count}:", *map(str, problems)]))


def is_project(path: str | Path) -> bool:
    """Returns whether this is a folder of agents."""
    agents = Path(path) / "agents"
    return agents.is_dir() and any(
        [(agents / one).is_dir() for one in FOLDERS] + [one.suffix == ".md" for one in agents.iterdir()]
    )


def read_project(
    path: str | Path, *, only_checking: bool = False, packages: Iterable[Installed] | None = None
) -> Project:
    """Reads a folder of agents, with everything that is wrong with its files in `problems`.

    `only_checking` sets WEFTLINE_CHECK to 1 while files are imported. `packages` are those whose definitions can be
    used; by default all that are installed.

    Raises:
        ProjectError: if it is not a folder of agents at all.
    """
    root = Path(path).expanduser()
    if not is_project(root):
        raise ProjectError(root, (Problem(file=str(root), line=1, message=_not_a_project(root)),))
    reading = _Reading(root, only_checking=only_checking)
    with checking(only_checking):
        for folder, kind in FOLDERS.items():
            for file in _files_of(root / "agents" / folder, deep=kind == "endpoint"):
                reading.read(file, kind)
        reading.read_host()
    reading.read_markdown()
    reading.note_strange_folders()
    with checking(only_checking):
        return reading.project(installed_packages() if packages is None else packages)


def _not_a_project(root: Path) -> str:
    if not root.is_dir():
        return "there is no such folder"
    if root.name == "agents" and is_project(root.parent):
        return f"this is the agents of a folder: give {root.parent}"
    return f"there is no folder agents in it with a Markdown file or one of {', '.join(FOLDERS)}"


def _files_of(folder: Path, *, deep: bool) -> Iterator[Path]:
    """Yields the Python files of a folder, none whose name, or folder's name, begins with `_` or `.`."""
    if not folder.is_dir():
        return
    for one in sorted(folder.iterdir()):
        if one.name.startswith(("_", ".")):
            continue
        if one.is_dir() and deep:
            yield from _files_of(one, deep=True)
        elif one.suffix == ".py":
            yield one


class _Reading:
    """Reads the files of one folder, and collects definitions and problems."""

    def __init__(self, root: Path, *, only_checking: bool = False) -> None:
        self.root = root
        self._only_checking = only_checking
        self.generation = Generation(root)
        self.found: dict[Kind, dict[str, AnyDefinition]] = {kind: {} for kind in KINDS.values()}
        self.origins: dict[tuple[Kind | str, str], Origin] = {}
        self.sources: dict[str, Source | Markdown] = {}
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.instructions = ""
        self.host: Any = None
        self.skills: tuple[Skill, ...] = ()
        self.schedules: dict[str, ScheduleDefinition] = {}
        self._shapes: dict[tuple[str, ...], str] = {}

    def project(self, packages: Iterable[Installed]) -> Project:
        tables: dict[str, Any] = {TABLES[kind]: dict(sorted(found.items())) for kind, found in self.found.items()}
        registry = Registry(
            **tables,
            instructions=self.instructions,
            skills=self.skills,
            schedules=dict(sorted(self.schedules.items())),
        )
        registry = self._with_packages(registry, packages)
        scripts = self.root / SCRIPTS
        return Project(
            root=self.root,
            name=self.root.resolve().name,
            registry=registry,
            problems=tuple(sorted(self.problems)),
            warnings=tuple(sorted(self.warnings)),
            origins=self.origins,
            sources=self.sources,
            evals=tuple(_files_of(self.root / "evals", deep=False)),
            scripts=scripts if scripts.is_file() else None,
            host=self.host,
            generation=self.generation,
        )

    def _with_packages(self, registry: Registry, packages: Iterable[Installed]) -> Registry:
        loaded: dict[str, Installed] = {}
        for one in packages:
            if one.exports is None:
                self.problem(Path(one.origin), 1, one.problem, about="package")
            elif (before := loaded.setdefault(one.exports.meta.package_id, one)) is not one:
                text = f"two packages have this id: {before.origin} has it too"
                about = f'package "{one.exports.meta.package_id}"'
                self.problem(Path(one.origin), 1, text, about=about)
        registry, issues = registry.with_packages([one.exports for one in loaded.values() if one.exports is not None])
        origins = {id: Origin(one.origin, "", 1) for id, one in loaded.items()}
        for one in issues:
            package = next((id for id in loaded if one.path.startswith(f"packages[{id!r}]")), "")
            file = Path(origins[package].file) if package else self.root
            field = one.path.partition("].")[2]
            self.problem(file, 1, one.message, about=f'package "{package}"', field=field)
        for kind, table in TABLES.items():
            for name, definition in getattr(registry, table).items():
                if package := package_of(definition):
                    self.origins[(kind, name)] = origins[package]
        return registry

    def problem(self, file: Path, line: int, message: str, *, about: str = "", field: str = "") -> None:
        self.problems.append(Problem(file=str(file), line=line, about=about, field=field, message=message))

    def read(self, file: Path, kind: Kind) -> None:
        """Imports a file and takes its definition."""
        text = self._text(file)
        if text is None:
            return
        source = Source(text, str(file))
        self.sources[str(file)] = source
        try:
            with self._deprecations(file):
                module = self.generation.load(file.absolute())
        except DefinitionError as error:
            line, _ = import_problem(error, file.absolute(), str(file))
            for one in error.issues:
                at = source.line_in_call(line, one.path)
                self.problem(file, at, one.message, about=error.about, field=one.path)
            return
        except (Exception, SystemExit) as error:
            line, message = import_problem(error, file.absolute(), str(file))
            self.problem(file, line, message)
            return
        self._take(file, source, kind, _definitions_in(module, source))

    @contextmanager
    def _deprecations(self, file: Path) -> Generator[None]:
        """Takes the old spellings that a file has as warnings of it, if it is only checked; else Python says so."""
        if not self._only_checking:
            yield
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DeprecationWarning)
            yield
        for one in caught:
            if one.filename == str(file.absolute()):
                self.warnings.append(Problem(file=str(file), line=one.lineno, message=str(one.message)))

    def _take(self, file: Path, source: Source, kind: Kind, found: dict[str, AnyDefinition]) -> None:
        wanted = "an endpoint or a controller" if kind == "endpoint" else _with_article(kind)
        if not found:
            self.problem(file, 1, f"defines nothing: it must have {wanted}, made by {_maker(kind)}")
            return
        if len(found) > 1:
            names = list(found)
            self.problem(
                file, source.line_of(names[1]), f"defines {len(found)} things ({', '.join(names)}); a file has one"
            )
            return
        ((variable, definition),) = found.items()
        line = source.line_of(variable)
        actual = KINDS[type(definition)]
        if actual != kind and not (kind == "endpoint" and actual == "controller"):
            place = next(folder for folder, of in FOLDERS.items() if of == (actual if actual != "controller" else kind))
            self.problem(
                file, line, f"defines {_with_article(actual)}, which belongs in agents/{place}; here is {wanted}"
            )
            return
        if kind == "endpoint":
            self._take_route(file, line, variable, actual, definition)
        else:
            self._take_named(file, source, variable, actual, definition)

    def _take_named(self, file: Path, source: Source, variable: str, kind: Kind, definition: Any) -> None:
        field = "id" if kind == "hook" else "name"
        stem, name = file.stem, getattr(definition, field)
        about = f'{kind} "{name or stem}"'
        if name and name != stem:
            at = source.line_of(variable, field)
            self.problem(
                file, at, f"is {name!r}, but the file is {file.name}: they must be the same", about=about, field=field
            )
            return
        if isinstance(definition, ToolDefinition | EffectDefinition):
            if problem := tool_name_problem(stem):
                self.problem(file, source.line_of(variable), f"{problem}; rename the file", about=about, field="name")
                return
            definition = replace(definition, name=stem)
        self.add(kind, stem, definition, Origin(str(file), variable, source.line_of(variable)))

    def _take_route(self, file: Path, line: int, variable: str, kind: Kind, definition: AnyDefinition) -> None:
        key = file.relative_to(self.root / "agents" / "api").with_suffix("").as_posix()
        try:
            route = Route.parse(key)
        except BadRoute as error:
            self.problem(file, line, f"the name of the file {error}", about=f'{kind} "{key}"')
            return
        other = self._shapes.setdefault((kind, *route.shape), str(file))
        if other != str(file):
            self.problem(file, line, f"is the same route as {other}", about=f'{kind} "{route}"')
            return
        self.add(kind, route.key, definition, Origin(str(file), variable, line))

    def add(self, kind: Kind, name: str, definition: AnyDefinition, origin: Origin) -> None:
        """Takes a definition, unless there is one of its name."""
        if self._is_first(kind, name, origin):
            self.found[kind][name] = definition

    def _is_first(self, kind: str, name: str, origin: Origin) -> bool:
        before = self.origins.setdefault((kind, name), origin)
        if before is not origin:
            text = f"is defined twice: {before.file}:{before.line} defines it too"
            self.problem(Path(origin.file), origin.line, text, about=f'{kind} "{name}"')
        return before is origin

    def read_host(self) -> None:
        """Takes `host` of the file `host.py`, if there is one."""
        file = self.root / HOST
        if not file.is_file():
            return
        try:
            module = self.generation.load(file.absolute())
        except (Exception, SystemExit) as error:
            line, message = import_problem(error, file.absolute(), str(file))
            self.problem(file, line, message)
            return
        if not hasattr(module, "host"):
            self.problem(file, 1, "has no name host: it is what code of the folder gets as state.host")
        self.host = getattr(module, "host", None)

    def read_markdown(self) -> None:
        """Reads what is Markdown: agents, what they all read, skills, and schedules."""
        for file in sorted((self.root / "agents").glob("*.md")):
            if (markdown := self._markdown(file, "agent", AGENT_FIELDS)) is not None:
                with self._told(file, markdown):
                    agent, prompt = agent_of(markdown, file.stem)
                    origin = Origin(str(file), "", 1)
                    self.add("agent", agent.name, agent, origin)
                    self.add("prompt", prompt.name, prompt, origin)
        general = self.root / "AGENTS.md"
        self.instructions = (self._text(general) or "").strip() if general.is_file() else ""
        self._read_skills()
        for file in sorted((self.root / "schedules").glob("*.md")):
            if (markdown := self._markdown(file, "schedule", SCHEDULE_FIELDS)) is not None:
                with self._told(file, markdown):
                    schedule = schedule_of(markdown, file.stem, self.found["agent"])
                    if self._is_first("schedule", schedule.name, Origin(str(file), "", 1)):
                        self.schedules[schedule.name] = schedule

    def _markdown(self, file: Path, kind: str, known: tuple[str, ...]) -> Markdown | None:
        if file.name.startswith(("_", ".")) or file.name in ("README.md", "AGENTS.md"):
            return None
        text = self._text(file)
        if text is None:
            return None
        markdown = self.sources[str(file)] = Markdown(text, f'{kind} "{file.stem}"')
        for one in markdown.misspelled(known):
            line = markdown.line_of("", one.path)
            told = Problem(file=str(file), line=line, about=markdown.about, field=one.path, message=one.message)
            self.warnings.append(told)
        return markdown

    def _text(self, file: Path) -> str | None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self.problem(file, 1, f"cannot be read: {error}")
            return None

    @contextmanager
    def _told(self, file: Path, source: Markdown) -> Generator[None]:
        """Takes what a definition says is wrong with it as problems of its file."""
        try:
            yield
        except DefinitionError as error:
            for one in error.issues:
                self.problem(file, source.line_of("", one.path), one.message, about=source.about, field=one.path)

    def _read_skills(self) -> None:
        found = discover([Place(self.root / "skills", "project", trusted=True)])
        self.skills = found.skills
        for skill in found.skills:
            file = next(Path(skill.directory).glob("[Ss][Kk][Ii][Ll][Ll].md"), Path(skill.directory))
            shown = self.root / "skills" / file.relative_to((self.root / "skills").resolve())
            self.origins[("skill", skill.name)] = Origin(str(shown), "", 1)
        for one in found.diagnostics:
            problem = Problem(file=one.path, line=1, message=one.message)
            (self.problems if one.kind == "left_out" else self.warnings).append(problem)

    def note_strange_folders(self) -> None:
        """Warns of folders that are not read: most are misspelled."""
        agents = self.root / "agents"
        for one in sorted(agents.iterdir()):
            if one.is_dir() and one.name not in FOLDERS and not one.name.startswith(("_", ".")):
                near = did_you_mean(one.name, FOLDERS)
                self.warnings.append(Problem(file=str(one), line=1, message=f"this folder is not read.{near}"))
            if one.is_dir() and one.name in FOLDERS and one.name != "api":
                for below in sorted(one.iterdir()):
                    if below.is_dir() and not below.name.startswith(("_", ".")):
                        text = "this folder is not read: the definitions of agents/api only may be in folders"
                        self.warnings.append(Problem(file=str(below), line=1, message=text))
            if one.is_file() and one.suffix == ".py" and not one.name.startswith("_"):
                text = f"this file is not read: Python files are in agents/{', agents/'.join(FOLDERS)}"
                self.warnings.append(Problem(file=str(one), line=1, message=text))


def _definitions_in(module: ModuleType, source: Source) -> dict[str, AnyDefinition]:
    """Returns the definitions that a file makes itself, by their public names: each once, and none that it imports."""
    found: dict[str, AnyDefinition] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name in source.imported or type(value) not in KINDS:
            continue
        if not any(value is other for other in found.values()):
            found[name] = value
    return found


def _with_article(kind: Kind) -> str:
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"


def _maker(kind: Kind) -> str:
    return "define_thread_endpoint or define_controller" if kind == "endpoint" else f"define_{kind}"
