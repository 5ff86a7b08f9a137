"""The format of skills: a SKILL.md is read leniently for a run, and validated strictly for its author."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from weftline.agent.skills.confined import Refused, read_inside
from weftline.agent.skills.frontmatter import Unreadable, Value, read, read_leniently, split
from weftline.errors import Issue

Source: TypeAlias = Literal["inline", "project", "user", "builtin"]
"""Where a skill comes from, in order of precedence: of skills with the same name, the first of these wins."""

FILE_NAMES = ("SKILL.md", "skill.md")
MAX_FILE_BYTES = 262_144
MAX_NAME_CHARS = 64
_MAX_USABLE_CHARS = 256
MAX_DESCRIPTION_CHARS = 1024
MAX_COMPATIBILITY_CHARS = 500
FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")


class Skill(Struct, frozen=True, kw_only=True):
    """A skill. One that you write in code needs `name`, `description` and `body`; the rest is for skills in files.

    `allowed_tools` is None if the skill does not declare any, and empty if it declares that it needs none.
    `directory` is the real path of its files, "" if it has none. Untrusted skills run no commands or scripts.
    """

    name: str
    description: str
    body: str
    license: str = ""
    compatibility: str = ""
    metadata: dict[str, str] = {}
    allowed_tools: tuple[str, ...] | None = None
    directory: str = ""
    source: Source = "inline"
    trusted: bool = True


class Loaded(NamedTuple):
    """A skill that was read, and its minor issues."""

    skill: Skill
    warnings: tuple[str, ...]


def parse(text: str, *, directory_name: str, directory: str = "", source: Source = "inline") -> Loaded:
    """Reads a skill from the text of its SKILL.md, leniently.

    Raises:
        Unreadable: if it has no description, no name that can be used, or frontmatter that cannot be read.
    """
    document = split(text)
    fields = read_leniently(document.frontmatter)
    warnings: list[str] = []
    if fields.repaired:
        warnings.append("its frontmatter is not valid YAML; values with colons and the like need quotes")
    warnings += [f"{name} appears more than once; the last one counts" for name in fields.repeated]
    values = fields.values
    description = _text(values.get("description")).strip()
    if not description:
        raise Unreadable("it has no description")
    if len(description) > MAX_DESCRIPTION_CHARS:
        warnings.append(
            f"its description has more than {MAX_DESCRIPTION_CHARS:,} characters; the catalog shows that many"
        )
    skill = Skill(
        name=_usable_name(values, directory_name, warnings),
        description=description,
        body=document.body,
        license=_text(values.get("license")),
        compatibility=_text(values.get("compatibility")),
        metadata=_metadata(values.get("metadata")),
        allowed_tools=_allowed_tools(values.get("allowed-tools"), warnings),
        directory=directory,
        source=source,
    )
    return Loaded(skill, tuple(warnings))


def validate(directory: Path | str) -> list[Issue]:
    """Returns everything that is wrong with the skill in `directory`; empty for a valid one.

    `weftline.agent.skills.format.validate("skills/pdf") == []`
    """
    place = Path(directory).resolve()
    for name in FILE_NAMES:
        try:
            data = read_inside(place, name, max_bytes=MAX_FILE_BYTES)
        except FileNotFoundError:
            continue
        except (Refused, OSError) as error:
            return [Issue("", f"{name} cannot be read: {error}")]
        if data.left:
            return [Issue("", f"{name} is larger than {MAX_FILE_BYTES // 1024} KiB")]
        try:
            return faults(data.content.decode(), directory_name=place.name)
        except UnicodeDecodeError:
            return [Issue("", f"{name} is not UTF-8 text")]
    return [Issue("", "there is no SKILL.md")]


def faults(text: str, *, directory_name: str) -> list[Issue]:
    """Returns everything that is wrong with the text of a SKILL.md."""
    try:
        fields = read(split(text).frontmatter)
    except Unreadable as error:
        return [Issue("", str(error))]
    values = fields.values
    found = [Issue(name, "appears more than once") for name in fields.repeated]
    found += _name_faults(values, directory_name)
    found += _text_faults(values, "description", MAX_DESCRIPTION_CHARS, required=True)
    found += _text_faults(values, "compatibility", MAX_COMPATIBILITY_CHARS)
    found += [Issue(name, "must be text") for name in ("license", "allowed-tools") if not _is_text(values, name)]
    found += _metadata_faults(values.get("metadata", {}))
    unknown = sorted(values.keys() - set(FIELDS))
    return found + [Issue(name, f"is not a field of a skill; those are {', '.join(FIELDS)}") for name in unknown]


def same_name(one: str, other: str) -> bool:
    """Returns True if two names are equal, however their characters are composed."""
    return unicodedata.normalize("NFKC", one) == unicodedata.normalize("NFKC", other)


def _name_faults(values: dict[str, Value], directory_name: str) -> Iterable[Issue]:
    name = values.get("name", "")
    if not isinstance(name, str):
        yield Issue("name", "must be text")
        return
    name = unicodedata.normalize("NFKC", name.strip())
    if not name:
        yield Issue("name", "is missing")
        return
    if len(name) > MAX_NAME_CHARS:
        yield Issue("name", f"has more than {MAX_NAME_CHARS} characters")
    if name != name.lower() or not all(char.isalnum() or char == "-" for char in name):
        yield Issue("name", "may have lowercase letters, digits and hyphens only")
    if name.startswith("-") or name.endswith("-") or "--" in name:
        yield Issue("name", "may not begin or end with a hyphen, nor have two in a row")
    if not same_name(name, directory_name):
        yield Issue("name", f"is not the name of the directory, {directory_name!r}")


def _text_faults(values: dict[str, Value], name: str, max_chars: int, *, required: bool = False) -> Iterable[Issue]:
    value = values.get(name)
    if value is None:
        if required:
            yield Issue(name, "is missing")
    elif not isinstance(value, str):
        yield Issue(name, "must be text")
    elif not value.strip():
        yield Issue(name, "is empty")
    elif len(value) > max_chars:
        yield Issue(name, f"has more than {max_chars:,} characters")


def _is_text(values: dict[str, Value], name: str) -> bool:
    return isinstance(values.get(name, ""), str)


def _metadata_faults(value: Value) -> Iterable[Issue]:
    if not isinstance(value, dict):
        yield Issue("metadata", "must be a mapping of names to strings")
        return
    for name, item in value.items():
        if not isinstance(item, str):
            yield Issue(f"metadata.{name}", "must be text")


def _usable_name(values: dict[str, Value], directory_name: str, warnings: list[str]) -> str:
    given = _text(values.get("name")).strip()
    name = unicodedata.normalize("NFKC", given)
    if not _is_usable(name):
        warnings.append(f"it has no usable name; its directory's, {directory_name!r}, is used")
        name = unicodedata.normalize("NFKC", directory_name)
        if not _is_usable(name):
            raise Unreadable("neither it nor its directory has a name that can be used")
        return name
    if not same_name(name, directory_name):
        warnings.append(f"its name is {name!r}, but its directory's is {directory_name!r}")
    elif list(_name_faults({"name": name}, directory_name)):
        warnings.append(f"its name is not 1 to {MAX_NAME_CHARS} lowercase letters, digits and single hyphens")
    return name


def _is_usable(name: str) -> bool:
    """Returns True if the name can be listed: without line breaks, control characters or unpaired surrogates."""
    return 0 < len(name) <= _MAX_USABLE_CHARS and name.isprintable()


def _text(value: Value | None) -> str:
    """Returns a value as text. A list or mapping, which the format does not allow there, becomes JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def _metadata(value: Value | None) -> dict[str, str]:
    return {name: _text(item) for name, item in value.items()} if isinstance(value, dict) else {}


def _allowed_tools(value: Value | None, warnings: list[str]) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(entry for item in value for entry in split_entries(_text(item)))
    if not isinstance(value, str):
        warnings.append("its allowed-tools cannot be read; no tool is allowed by it")
        return ()
    if not value.strip():
        warnings.append("its allowed-tools are empty, as if it had none")
        return None
    return split_entries(value)


def split_entries(text: str) -> tuple[str, ...]:
    """Splits the entries of `allowed-tools` at spaces or commas, but not inside parentheses.

    `split_entries("Read Bash(git add:*)") == ("Read", "Bash(git add:*)")`
    """
    entries: list[str] = []
    current = ""
    depth = 0
    for char in text:
        if depth <= 0 and (char.isspace() or char == ","):
            entries.append(current)
            current = ""
            continue
        depth += (char == "(") - (char == ")")
        current += char
    return tuple(entry for entry in (*entries, current) if entry)
