"""Templates of stored HTTP tools: `{{city}}` stands for an argument, `{{secrets.TOKEN}}` for a secret.

In a URL, a header or a text body, values are text. A JSON body is a structural template: a string that consists of one
placeholder becomes the value itself, so that no value can change the shape of the document.
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
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

MAX_ADDRESS_CHARS = 64 * 1024
MAX_HEADER_CHARS = 32 * 1024
MAX_BODY_CHARS = 16 * 1024 * 1024
"""The total size of the values in one address, header or body, as a template may repeat a long one many times."""

_MISSING = object()


class _Room:
    """The room that is left in one part of a request. It is checked before a value is encoded."""

    def __init__(self, part: str, limit: int) -> None:
        self._part = part
        self._limit = limit
        self._left = limit

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ToolFailed(prompts.remote.request_too_large(self._part, self._limit))


class Values:
    """The values of placeholders in one call."""

    def __init__(self, args: Mapping[str, object], secrets: Mapping[str, str]) -> None:
        self._args = args
        self._secrets = secrets
        self._texts: dict[str, str] = {}

    def url(self, template: str) -> str:
        """Returns the URL with every value encoded, so that it cannot affect other parts of the URL."""
        room = _Room("address", MAX_ADDRESS_CHARS)
        head, mark, query = template.partition("?")
        path = self._filled(head, room, lambda value: quote(value, safe=""))
        for segment in path.split("/")[3:]:
            if segment in (".", ".."):
                raise ToolFailed(prompts.remote.PATH_NOT_ALLOWED)
        return path + mark + self._filled(query, room, lambda value: quote(value, safe=""))

    def header(self, template: str) -> str:
        value = self._filled(template, _Room("header", MAX_HEADER_CHARS))
        if _CONTROL.search(value):
            raise ToolFailed(prompts.remote.HEADER_NOT_ALLOWED)
        return value

    def text(self, template: str) -> str:
        return self._filled(template, _Room("body", MAX_BODY_CHARS))

    def json(self, template: object) -> object:
        return self._shaped(template, _Room("body", MAX_BODY_CHARS))

    def _shaped(self, template: object, room: _Room) -> object:
        if isinstance(template, str):
            whole = _PLACEHOLDER.fullmatch(template)
            if whole is None:
                return self._filled(template, room)
            value = self._value(whole[1])
            room.take(len(self._spelled(whole[1])))
            return None if value is _MISSING else value
        if isinstance(template, dict):
            return {key: self._shaped(value, room) for key, value in cast("dict[str, object]", template).items()}
        if isinstance(template, list):
            return [self._shaped(value, room) for value in cast("list[object]", template)]
        return template

    def _filled(self, template: str, room: _Room, encoded: Callable[[str], str] = str) -> str:
        def value(match: re.Match[str]) -> str:
            text = self._spelled(match[1])
            room.take(len(text))
            return encoded(text)

        return _PLACEHOLDER.sub(value, template)

    def _spelled(self, name: str) -> str:
        if name not in self._texts:
            self._texts[name] = _text(self._value(name))
        return self._texts[name]

    def _value(self, name: str) -> object:
        if name.startswith(_SECRET):
            secret = self._secrets.get(name.removeprefix(_SECRET))
            if secret is None:
                raise ToolFailed(prompts.remote.missing_secret(name.removeprefix(_SECRET)))
            return secret
        value = cast(object, self._args)
        for step in name.split("."):
            if not isinstance(value, Mapping):
                return _MISSING
            value = cast("Mapping[str, object]", value).get(step, _MISSING)
        return value


def placeholders(template: object) -> Iterator[str]:
    """Yields the names in a template, at any depth."""
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
