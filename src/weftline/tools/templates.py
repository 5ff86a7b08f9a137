"""Templates of stored HTTP tools: `{{city}}` stands for an argument, `{{secrets.TOKEN}}` for a secret.

A URL, a header or a text body takes values as text. A JSON body is a template by its structure: a string that is one
placeholder and nothing else becomes the value itself, so no value can change the shape of the document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import cast
from urllib.parse import quote

from msgspec.json import encode

from weftline import prompts
from weftline.tools.base import ToolFailed

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*)\s*\}\}")
_SECRET = "secrets."

_MISSING = object()


class Values:
    """What placeholders stand for in one call."""

    def __init__(self, args: Mapping[str, object], secrets: Mapping[str, str]) -> None:
        self._args = args
        self._secrets = secrets

    def url(self, template: str) -> str:
        """The URL with every value encoded, so that none can reach beyond its own place."""
        head, mark, query = template.partition("?")
        path = self._filled(head, lambda value: quote(value, safe=""))
        for segment in path.split("/")[3:]:
            if segment in (".", ".."):
                raise ToolFailed(prompts.PATH_NOT_ALLOWED)
        return path + mark + self._filled(query, lambda value: quote(value, safe=""))

    def header(self, template: str) -> str:
        value = self._filled(template, lambda value: value)
        if any((ord(char) < 0x20 and char != "\t") or ord(char) == 0x7F for char in value):
            raise ToolFailed(prompts.HEADER_NOT_ALLOWED)
        return value

    def text(self, template: str) -> str:
        return self._filled(template, lambda value: value)

    def json(self, template: object) -> object:
        if isinstance(template, str):
            whole = _PLACEHOLDER.fullmatch(template)
            if whole is None:
                return self.text(template)
            value = self._value(whole[1])
            return None if value is _MISSING else value
        if isinstance(template, dict):
            return {key: self.json(value) for key, value in cast("dict[str, object]", template).items()}
        if isinstance(template, list):
            return [self.json(value) for value in cast("list[object]", template)]
        return template

    def _filled(self, template: str, encoded: Callable[[str], str]) -> str:
        return _PLACEHOLDER.sub(lambda match: encoded(_text(self._value(match[1]))), template)

    def _value(self, name: str) -> object:
        if name.startswith(_SECRET):
            secret = self._secrets.get(name.removeprefix(_SECRET))
            if secret is None:
                raise ToolFailed(prompts.missing_secret(name.removeprefix(_SECRET)))
            return secret
        value = cast(object, self._args)
        for step in name.split("."):
            if not isinstance(value, Mapping):
                return _MISSING
            value = cast("Mapping[str, object]", value).get(step, _MISSING)
        return value


def placeholders(template: object) -> Iterator[str]:
    """The names in a template, at any depth."""
    if isinstance(template, str):
        yield from _PLACEHOLDER.findall(template)
    elif isinstance(template, dict):
        for value in cast("dict[str, object]", template).values():
            yield from placeholders(value)
    elif isinstance(template, list):
        for value in cast("list[object]", template):
            yield from placeholders(value)


def secret_names(template: object) -> set[str]:
    return {name.removeprefix(_SECRET) for name in placeholders(template) if name.startswith(_SECRET)}


def _text(value: object) -> str:
    if value is _MISSING or value is None:
        return ""
    return value if isinstance(value, str) else encode(value).decode()
