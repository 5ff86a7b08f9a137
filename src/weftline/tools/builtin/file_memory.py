"""The memory of a run about the files it has read and written, in `ToolContext.state`: one key per file."""

from __future__ import annotations

from collections.abc import MutableMapping
from hashlib import blake2b
from typing import Any, cast

from weftline.tools.builtin.reading import Slice


def fingerprint(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


class FileMemory:
    """The last version of each file that the model knows, and the part that it read last."""

    def __init__(self, state: MutableMapping[str, Any]) -> None:
        self._state = state

    def known(self, path: str) -> str | None:
        """The fingerprint of the version that the model read or wrote last."""
        return cast("str | None", self._entry(path).get("hash"))

    def has_seen(self, path: str, data: bytes, part: Slice) -> bool:
        """Returns True if the last read of this file returned exactly this part of this content."""
        entry = self._entry(path)
        return entry.get("part") == _written(part) and entry.get("hash") == fingerprint(data)

    def saw(self, path: str, data: bytes, part: Slice) -> None:
        self._state[_key(path)] = {"hash": fingerprint(data), "part": _written(part)}

    def wrote(self, path: str, data: bytes) -> None:
        """Records that the model knows the new content. No result contains it, so reading it is not a repetition."""
        self._state[_key(path)] = {"hash": fingerprint(data)}

    def _entry(self, path: str) -> dict[str, Any]:
        entry = self._state.get(_key(path))
        return cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}


def _key(path: str) -> str:
    return "read:" + path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _written(part: Slice) -> list[int]:
    return [part.offset, part.limit, part.max_bytes]
