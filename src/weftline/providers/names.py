"""Tool names as a model family accepts them, and the mapping back.

Families refuse names that we allow (dots, slashes, blanks, more than 64 characters). A name that a family accepts is
sent unchanged; any other is repaired in a way that depends only on that name, so that the bytes of earlier requests
stay the same as other tools come and go.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable
from functools import lru_cache

from weftline.providers.base import ProviderError

ALLOWED = r"[a-zA-Z0-9_-]"
"""One character of a tool name that OpenAI and Anthropic accept."""

_DIGEST_LENGTH = 8


class NameMap:
    """Names of one request's tools, both ways.

    `allowed` is a regular expression for one character (a class such as `[a-zA-Z0-9_-]`), `limit` the maximum length
    and `first`, if given, what the first character must be. Two tools that would be sent under one name are refused
    with a `ProviderError` of class `invalid_request`.

    >>> names = NameMap(["files.read"])
    >>> names.out("files.read"), names.back("files_read")
    ('files_read', 'files.read')
    """

    __slots__ = ("_allowed", "_back", "_first", "_limit", "_out")

    def __init__(
        self, names: Iterable[str], *, allowed: str = ALLOWED, limit: int = 64, first: str | None = None
    ) -> None:
        self._allowed = allowed
        self._limit = limit
        self._first = first
        self._out: dict[str, str] = {}
        self._back: dict[str, str] = {}
        for name in names:
            sent = repaired(name, allowed=allowed, limit=limit, first=first)
            other = self._back.get(sent)
            if other is not None and other != name:
                raise ProviderError(
                    "invalid_request",
                    f"The tools {other!r} and {name!r} would both be sent as {sent!r}; rename one of them.",
                    code="tool_name_collision",
                )
            self._back[sent] = name
            self._out[name] = sent

    def knows(self, name: str) -> bool:
        """Returns True if a tool was sent under this name."""
        return name in self._back

    def out(self, name: str) -> str:
        """Returns the name to send. Names of tools that this request does not have are repaired in the same way."""
        sent = self._out.get(name)
        if sent is None:
            sent = repaired(name, allowed=self._allowed, limit=self._limit, first=self._first)
        return sent

    def back(self, name: str) -> str:
        """Returns our name for the one that the model used; a name that was never sent is returned as it is."""
        return self._back.get(name, name)


def free_name(name: str, taken: Container[str]) -> str:
    """Returns the name for a tool of ours, with a number if a tool of the run has it."""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


@lru_cache(maxsize=4096)
def repaired(name: str, *, allowed: str = ALLOWED, limit: int = 64, first: str | None = None) -> str:
    """Replaces characters that are not allowed by `_`, and the end of a long name by a digest of the whole."""
    one = re.compile(allowed)
    sent = "".join(char if one.fullmatch(char) else "_" for char in name) or "_"
    if first is not None and not re.fullmatch(first, sent[0]):
        sent = f"_{sent}"
    if len(sent) > limit:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
        sent = f"{sent[: limit - _DIGEST_LENGTH - 1]}_{digest}"
    return sent
