"""Reads the YAML between the `---` lines of a SKILL.md, which is untrusted.

Every scalar is a string: `version: 1.10` is "1.10" and `name: on` is "on", as the format has no other types. Aliases
are refused, because a few hundred bytes of them can stand for gigabytes; so are nesting and sizes that no skill needs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

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
