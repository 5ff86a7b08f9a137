"""Reads columns that may be damaged: a store has no checksums, and whatever is in a row is displayed to somebody.

A row with a damaged column is neither left out of lists nor makes them fail. It gets harmless values and the name of
the column, so that the row can be displayed as damaged.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import DecodeError, Raw
from msgspec.json import Decoder

STATUSES = frozenset({"queued", "running", "paused", "succeeded", "failed", "cancelled"})
MAX_TIME_US = 253_402_300_799_999_999
"""The end of the year 9999, the last that ISO 8601 can name in four digits."""

_decode_words = Decoder(dict[str, str]).decode
_scan = Decoder(Raw).decode
_decode_texts = Decoder(list[str]).decode


class Columns:
    """Reads columns one by one. `damaged` is the first that cannot be what was written, or ""."""

    __slots__ = ("damaged",)

    def __init__(self) -> None:
        self.damaged = ""

    def time(self, name: str, value: int) -> int:
        return value if 0 <= value <= MAX_TIME_US else self._bad(name) or 0

    def time_or_none(self, name: str, value: int | None) -> int | None:
        return value if value is None or 0 <= value <= MAX_TIME_US else self._bad(name)

    def status(self, value: str) -> str:
        return value if value in STATUSES else self._bad("status") or "failed"

    def seq(self, name: str, value: int) -> int:
        return value if value >= 1 else self._bad(name) or 1

    def text(self, name: str, value: str | bytes) -> str:
        """A text, which is read as bytes if it is not valid UTF-8."""
        if isinstance(value, str):
            return value
        try:
            return value.decode()
        except UnicodeDecodeError:
            self._bad(name)
            return value.decode(errors="replace")

    def text_or_none(self, name: str, value: str | bytes | None) -> str | None:
        return None if value is None else self.text(name, value)

    def one_of(self, name: str, value: str | bytes, known: Sequence[str]) -> str:
        """One of the `known` texts; the first of them replaces an unknown one."""
        return value if isinstance(value, str) and value in known else self._bad(name) or known[0]

    def texts(self, name: str, value: str | bytes) -> tuple[str, ...]:
        """JSON: a list of strings."""
        try:
            return tuple(_decode_texts(value))
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return self._bad(name) or ()

    def json(self, name: str, value: bytes) -> bytes:
        """Any JSON."""
        try:
            value.decode()  # `_scan` does not look inside strings
            _scan(value)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return self._bad(name) or b"{}"
        return value

    def words(self, name: str, value: str | bytes) -> str:
        """JSON: strings by name."""
        try:
            _decode_words(value)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return self._bad(name) or "{}"
        return value if isinstance(value, str) else value.decode()

    def _bad(self, name: str) -> None:
        self.damaged = self.damaged or name
