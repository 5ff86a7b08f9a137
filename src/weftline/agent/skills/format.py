"""The format of skills: a SKILL.md is read leniently for a run, and validated strictly for its author."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import msgspec
from msgspec import Struct

from weftline.agent.skills.confined import Refused, read_inside
from weftline.errors import Issue
from weftline.text.characters import whole

if TYPE_CHECKING:
    from yaml.nodes import Node


Value: TypeAlias = "str | list[Value] | dict[str, Value]"

MAX_BYTES = 16_384
MAX_DEPTH = 8
_MAX_BRACKETS = 64
"""How many may be open at once. The parser takes quadratic time in these to find the end of a key."""

_LINE = "---"
_KEY = re.compile(r"(?P<indent> *)(?P<key>[\w.-]+) *:(?:[ \t]+(?P<value>\S.*))?")
_BLOCK_SCALAR = re.compile(r"[|>][+-]?[0-9]?[+-]?(?:\s+#.*)?")


class Unreadable(Exception):
    """The frontmatter cannot be read; the message says why."""


class Document(NamedTuple):
    """A SKILL.md split into the text of its frontmatter and the body."""

    frontmatter: str
    body: str


class Fields(NamedTuple):
    """The fields of the frontmatter, and what was tolerated to read it."""

    values: dict[str, Value]
    repeated: tuple[str, ...] = ()
    repaired: bool = False
    """Whether it is not valid YAML as it stands, so that values were quoted."""


def split(text: str) -> Document:
    """Splits a SKILL.md.

    Raises:
        Unreadable: if it has no frontmatter, or one without an end.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").lstrip("\n").split("\n")
    if lines[0].rstrip() != _LINE:
        raise Unreadable("it does not begin with frontmatter: a line `---`, fields, and another line `---`")
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == _LINE:
            return Document("\n".join(lines[1:number]), "\n".join(lines[number + 1 :]).strip("\n"))
    raise Unreadable("its frontmatter has no closing `---` line")


def read(frontmatter: str) -> Fields:
    """Reads the fields as strict YAML.

    Raises:
        Unreadable: if this is not YAML, not a mapping, or larger than any skill needs.
    """
    if len(frontmatter.encode("utf-8", "replace")) > MAX_BYTES:
        raise Unreadable(f"its frontmatter is larger than {MAX_BYTES // 1024} KiB")
    open_brackets = 0
    for char in frontmatter:
        open_brackets += (char in "[{") - (char in "]}")
        if open_brackets > _MAX_BRACKETS:
            raise Unreadable(f"its frontmatter is nested deeper than {MAX_DEPTH} levels")
    repeated: list[str] = []
    value = _value(_compose(frontmatter), "", repeated)
    if not isinstance(value, dict):
        raise Unreadable("its frontmatter is not a list of `field: value` lines")
    return Fields(value, tuple(repeated))


def read_leniently(frontmatter: str) -> Fields:
    """Reads the fields, even if values contain characters that YAML wants quoted: `description: Use when: always`.

    Raises:
        Unreadable: if that does not help.
    """
    try:
        return read(frontmatter)
    except Unreadable as error:
        try:
            return read(_quoted(frontmatter))._replace(repaired=True)
        except Unreadable:
            raise error from None


def _compose(text: str) -> Node:
    import yaml

    class Loader(yaml.BaseLoader):
        """Builds nodes only, without duplicate keys or deep nesting."""

        depth = 0

        def compose_node(self, parent: Node | None, index: int) -> Node | None:
            if cast("Any", self).check_event(yaml.AliasEvent):
                raise Unreadable("its frontmatter uses YAML aliases (`*name`), which skills may not")
            if self.depth == MAX_DEPTH:
                raise Unreadable(f"its frontmatter is nested deeper than {MAX_DEPTH} levels")
            self.depth += 1
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth -= 1

    try:
        node = cast("Node | None", cast("Any", Loader(text)).get_single_node())
    except yaml.MarkedYAMLError as error:
        where = f" in line {error.problem_mark.line + 2}" if error.problem_mark is not None else ""
        raise Unreadable(f"its frontmatter is not valid YAML{where}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, OverflowError):
        # A character that YAML does not allow, or an invalid escape.
        raise Unreadable("its frontmatter has characters that YAML does not allow") from None
    if node is None:
        raise Unreadable("its frontmatter is empty")
    return node


def _value(node: Node, path: str, repeated: list[str]) -> Value:
    from yaml.nodes import MappingNode, ScalarNode, SequenceNode

    match node:
        case ScalarNode():
            return whole(str(node.value))
        case SequenceNode():
            return [_value(item, path, repeated) for item in node.value]
        case MappingNode():
            values: dict[str, Value] = {}
            for key_node, item in node.value:
                if not isinstance(key_node, ScalarNode):
                    raise Unreadable("its frontmatter has a field whose name is not a word")
                key = whole(str(key_node.value))
                here = f"{path}.{key}" if path else key
                if key in values:
                    repeated.append(here)
                values[key] = _value(item, here, repeated)
            return values
        case _:
            raise Unreadable("its frontmatter is not valid YAML")


def _quoted(frontmatter: str) -> str:
    """Quotes every field of the frontmatter that YAML cannot read as it stands."""
    fields: list[list[str]] = []
    for line in frontmatter.split("\n"):
        if fields and (not line.strip() or line[0] in " \t"):
            fields[-1].append(line)
        else:
            fields.append([line])
    return "\n".join(line for lines in fields for line in _readable(lines))


def _readable(lines: list[str]) -> list[str]:
    """Returns one field with its lines, quoted if necessary."""
    if _reads("\n".join(lines)):
        return lines
    head, *rest = lines
    found = _KEY.fullmatch(head.rstrip())
    if found is None:
        return lines
    value = found["value"]
    if value is None:
        # A mapping such as `metadata`: each of its lines is a field of its own.
        return [head, *(line for one in rest for line in (_readable([one]) if one.strip() else [one]))]
    if _BLOCK_SCALAR.fullmatch(value):
        return lines
    words = " ".join([value, *(line.strip() for line in rest if line.strip())])
    return [f"{found['indent']}{found['key']}: '{_unquoted(words).replace(chr(39), chr(39) * 2)}'"]


def _reads(text: str) -> bool:
    try:
        read(text)
    except Unreadable:
        return not text.strip() or text.lstrip().startswith("#")
    return True


def _unquoted(words: str) -> str:
    """Removes quotes around a text such as `"Say "hello""`, which made it unreadable."""
    if len(words) > 1 and words[0] == words[-1] and words[0] in "'\"":
        return words[1:-1]
    return words


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
