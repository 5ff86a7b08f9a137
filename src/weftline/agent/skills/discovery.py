"""Finds skills: where to search, how deep, and which one of each name wins.

    inline  >  project  >  user  >  builtin

Within a scope the first in scan order wins: places in their order, then level by level, names sorted by their bytes, so
that every machine finds the same. The diagnostics say what was left out, and why. An unreadable skill never hides
another one.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from weftline.agent.skills.confined import Refused, read_inside
from weftline.agent.skills.format import FILE_NAMES, MAX_FILE_BYTES, Loaded, Skill, Source, Unreadable, parse

SKIPPED = frozenset({".git", "node_modules"})
MAX_DEPTH = 6
MAX_DIRECTORIES = 2000
MAX_ENTRIES = 100_000
MAX_TOTAL_BYTES = 32 * 1024 * 1024
"""All four limits are per place, so that a crowded one does not affect another."""

PLACES = (".weftline/skills", ".agents/skills")
CLAUDE_PLACE = ".claude/skills"
SOURCES: tuple[Source, ...] = ("inline", "project", "user", "builtin")

ProblemKind: TypeAlias = Literal["warning", "left_out", "shadowed", "cut_short", "missing", "untrusted", "unknown_tool"]


class Diagnostic(Struct, frozen=True):
    """Something about skills that a person may want to know. `path` is the file or directory concerned."""

    kind: ProblemKind
    path: str
    message: str

    def __str__(self) -> str:
        # A line break in a path must not become one in a log.
        path = self.path if self.path.isprintable() else ascii(self.path)
        return f"{path}: {self.message}" if path else self.message


class Place(NamedTuple):
    """A directory that holds skills, or is one. Links that lead out of `fence` are not followed."""

    path: Path
    source: Source
    trusted: bool = True
    fence: Path | None = None
    must_exist: bool = False


class Discovery(NamedTuple):
    """The result of a search: the winning skill of each name, by name, and all diagnostics."""

    skills: tuple[Skill, ...]
    diagnostics: tuple[Diagnostic, ...]


def standard_places(
    *, project: Path | None, home: Path | None, trust_project: bool | None, claude_dirs: bool = False
) -> list[Place]:
    """Returns the places where skills of a project and of its user are kept.

    With `trust_project=None` a project's skills are found but not trusted; with False they are not looked for.
    """
    names = (*PLACES, CLAUDE_PLACE) if claude_dirs else PLACES
    of_user = [] if home is None else [Place(home / name, "user") for name in names]
    if project is None or trust_project is False:
        return of_user
    # Users who work in their home directory still own what is there.
    owned = {os.path.realpath(place.path) for place in of_user}
    fence = None if trust_project else project
    of_project = [Place(project / name, "project", bool(trust_project), fence) for name in names]
    return [place for place in of_project if os.path.realpath(place.path) not in owned] + of_user


def discover(places: Sequence[Place], *, inline: Iterable[Skill] = (), disabled: Iterable[str] = ()) -> Discovery:
    """Searches the places and decides which skill of each name wins. Never raises because of a file's content."""
    diagnostics: list[Diagnostic] = []
    found = list(inline)
    for source in SOURCES:
        for place in places:
            if place.source == source:
                found += _scan(place, diagnostics)
    hidden = set(disabled)
    chosen: dict[str, Skill] = {}
    # The sort is stable: within a scope, the first found stays first.
    for skill in sorted(found, key=lambda one: SOURCES.index(one.source)):
        winner = chosen.setdefault(skill.name, skill)
        if winner is not skill:
            diagnostics.append(_shadowed(skill, winner))
    diagnostics += [
        Diagnostic("missing", "", f"There is no skill {name!r} to disable.") for name in sorted(hidden - chosen.keys())
    ]
    skills = tuple(chosen[name] for name in sorted(chosen.keys() - hidden))
    return Discovery(skills, tuple(diagnostics))


def _shadowed(skill: Skill, winner: Skill) -> Diagnostic:
    by = winner.directory or "one that the program defines"
    message = (
        f"The {skill.source} skill {skill.name!r} is left out: the {winner.source} skill of that name wins ({by})."
    )
    return Diagnostic("shadowed", skill.directory, message)


class _Visit(NamedTuple):
    path: Path
    depth: int


def _scan(place: Place, diagnostics: list[Diagnostic]) -> Generator[Skill]:
    """Yields the skills of one place, level by level. A directory that is a skill is not searched further."""
    if not place.path.is_dir():
        if place.must_exist:
            diagnostics.append(Diagnostic("missing", str(place.path), "There is no such directory."))
        return
    fence = None if place.fence is None else Path(os.path.realpath(place.fence))
    seen: set[tuple[int, int]] = set()
    waiting = deque([_Visit(place.path, 0)])
    size = entries = 0
    cut: set[str] = set()
    while waiting:
        path, depth = waiting.popleft()
        try:
            about = os.stat(path)
            if not stat.S_ISDIR(about.st_mode) or (about.st_dev, about.st_ino) in seen:
                continue
            if fence is not None and not Path(os.path.realpath(path)).is_relative_to(fence):
                diagnostics.append(_leads_out(path))
                continue
            if len(seen) == MAX_DIRECTORIES:
                cut.add(f"more than {MAX_DIRECTORIES:,} directories")
                break
            seen.add((about.st_dev, about.st_ino))
            names = sorted(os.listdir(path), key=os.fsencode)
        except OSError as error:
            diagnostics.append(Diagnostic("left_out", str(path), f"The directory cannot be read: {error.strerror}."))
            continue
        file = next((name for name in FILE_NAMES if name in names), None)
        if file is not None:
            loaded, read_bytes = _load(path, file, place, diagnostics)
            size += read_bytes
            if size > MAX_TOTAL_BYTES:
                cut.add(f"more than {MAX_TOTAL_BYTES // 2**20} MiB of SKILL.md files")
                break
            if loaded is not None:
                yield loaded
            continue
        entries += len(names)
        if entries > MAX_ENTRIES:
            cut.add(f"more than {MAX_ENTRIES:,} files")
            break
        below = [path / name for name in names if name not in SKIPPED and (path / name).is_dir()]
        if depth == MAX_DEPTH:
            if below:
                cut.add(f"directories more than {MAX_DEPTH} levels deep")
            continue
        waiting += [_Visit(one, depth + 1) for one in below]
    for reason in sorted(cut):
        message = f"The search for skills was cut short: there are {reason}."
        diagnostics.append(Diagnostic("cut_short", str(place.path), message))


def _leads_out(path: Path) -> Diagnostic:
    message = "Left out: it leads out of the project, which is not trusted."
    return Diagnostic("untrusted", str(path), message)


def _load(path: Path, file: str, place: Place, diagnostics: list[Diagnostic]) -> tuple[Skill | None, int]:
    real = os.path.realpath(path)
    # The name by which the skill was found; a place such as `.` only has its real name.
    name = path.name if path.name not in ("", "..") else os.path.basename(real)
    where = str(path / file)
    size = 0
    try:
        read = read_inside(real, file, max_bytes=MAX_FILE_BYTES)
        size = len(read.content)
        if read.left:
            raise Unreadable(f"it is larger than {MAX_FILE_BYTES // 1024} KiB")
        text = read.content.decode("utf-8", "replace")
        loaded: Loaded = parse(text, directory_name=name, directory=real, source=place.source)
    except (Unreadable, Refused) as error:
        diagnostics.append(Diagnostic("left_out", where, f"This skill is left out: {error}."))
        return None, size
    except OSError as error:
        diagnostics.append(Diagnostic("left_out", where, f"This skill is left out: {error.strerror}."))
        return None, size
    warnings = [*loaded.warnings, *(["it is not UTF-8 throughout"] if text.encode() != read.content else [])]
    diagnostics += [Diagnostic("warning", where, f"This skill is loaded, but {one}.") for one in warnings]
    return replace(loaded.skill, trusted=place.trusted), size
