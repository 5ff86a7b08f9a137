"""Where a replay diverges from the log: the fields that differ, and a description."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct
from msgspec.json import decode, encode

_EXCERPT_CHARS = 200
_ABSENT = "(absent)"


class Difference(Struct, frozen=True):
    """One field, as it is in the log and as this code would write it. `None` stands for a missing field."""

    field: str
    log: Any
    now: Any


class Divergence(Struct, frozen=True):
    """The first difference between a log and its replay with this code."""

    run: str
    turn: int
    """Counted from 0, as in events."""
    seq: int
    """The seq of the first entry of the log that differs."""
    kind: str
    """The kind of entry in the log; "" if the log has ended."""
    now: str
    """The kind of entry that this code would write; "" if none."""
    differences: tuple[Difference, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.run} diverges in turn {self.turn}, at entry {self.seq}: {self._subject()}"]
        lines += [
            f"  {one.field}: the log has {_excerpt(one.log)}, now it is {_excerpt(one.now)}" for one in self.differences
        ]
        return "\n".join(lines)

    def _subject(self) -> str:
        if self.kind == self.now:
            return f"{self.kind} differs."
        if not self.now:
            return f"the log has {self.kind}, which no longer happens."
        if not self.kind:
            return f"the log ends here, now {self.now} follows."
        return f"the log has {self.kind}, now it is {self.now}."


def differences(log: object, now: object, *, path: str = "") -> list[Difference]:
    """Compares JSON values, structs and the like."""
    left, right = _plain(log), _plain(now)
    if left == right and type(left) is type(right):
        return []
    if isinstance(left, dict) and isinstance(right, dict):
        ours, theirs = cast("dict[str, Any]", left), cast("dict[str, Any]", right)
        names = [*ours, *[name for name in theirs if name not in ours]]
        return [
            one for name in names for one in differences(ours.get(name), theirs.get(name), path=_joined(path, name))
        ]
    if isinstance(left, list) and isinstance(right, list):
        before, after = cast("list[Any]", left), cast("list[Any]", right)
        if len(before) == len(after):
            pairs = enumerate(zip(before, after, strict=True))
            return [one for at, (a, b) in pairs for one in differences(a, b, path=_joined(path, str(at)))]
    return [Difference(path or "value", left, right)]


def body_value(body: bytes) -> object:
    """The body of an entry, decoded for comparison."""
    return decode(body) if body else {}


def _plain(value: object) -> object:
    """The value in JSON's own types, without rounding integers."""
    return decode(encode(value))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _excerpt(value: object) -> str:
    if value is None:
        return _ABSENT
    text = encode(value).decode()
    return text if len(text) <= _EXCERPT_CHARS else f"{text[:_EXCERPT_CHARS]}… ({len(text):,} characters)"
