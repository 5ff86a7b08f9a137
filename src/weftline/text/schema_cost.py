"""Measures what a JSON Schema can cost, before it is used.

Two kilobytes of schema can require practically infinite work: with `$ref`, thirty definitions that each name the next
one twice make a billion subschemas. So a schema is measured as if every reference were expanded, in time that is linear
in its bytes, and refused if that is too much.

If `Cost.bounded` is true, checking a value takes at most `values` steps for each JSON value in it. A schema that is
recursive, or that depends on what its parts have seen (`unevaluatedProperties`), has no such bound: a recursive union
may try every variant at every level. Checking values against it must be interruptible.
"""

from __future__ import annotations

import re
from typing import cast

from msgspec import Struct

from weftline.text.percent import decoded

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 400
"""Levels of JSON, with references followed; a recursive reference is followed once."""
MAX_SCHEMA_VALUES = 100_000
"""JSON values, with references followed."""

_UNBOUNDED = frozenset({"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"})
_COUNTED = re.compile(r"\{([0-9]{1,4})(?:,([0-9]{0,4}))?\}")
_MAX_PATTERN_STATES = 1_000_000_000


class TooCostly(ValueError):
    """The schema is too large; the message tells the sender why."""


class Cost(Struct, frozen=True):
    values: int
    depth: int
    bounded: bool
    pattern_states: int
    """Roughly the total number of states of the regular expressions."""


def measured(schema: object) -> Cost:
    """Returns the cost of a schema, or of any other JSON value. Raises `TooCostly`."""
    walk = _Walk(schema)
    values, depth = walk.node(schema, 1)
    return Cost(values, depth, walk.bounded, walk.pattern_states)


def refusal(schema: object, *, encoded: bytes, max_bytes: int = MAX_SCHEMA_BYTES) -> str | None:
    """Returns why a schema is refused, or None. `encoded` is the schema as JSON without escapes in names."""
    if len(encoded) > max_bytes:
        return f"has more than {max_bytes} bytes as JSON"
    # Without references, a schema costs no more than its bytes, and most are small.
    if b'ef"' not in encoded and encoded.count(b"{") + encoded.count(b"[") < MAX_SCHEMA_DEPTH:
        return None
    try:
        measured(schema)
    except TooCostly as error:
        return str(error)
    return None


class _Walk:
    """Visits each value once, however many references lead to it."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._measured: dict[int, tuple[int, int]] = {}
        self._path: set[int] = set()
        self.bounded = True
        self.pattern_states = 0

    def node(self, value: object, level: int) -> tuple[int, int]:
        """Returns how many values are at and below `value`, and how many levels."""
        if not isinstance(value, dict | list):
            return 1, 1
        identity = id(cast("object", value))
        if identity in self._path:
            self.bounded = False
            return 1, 1
        cached = self._measured.get(identity)
        if cached is None:
            if level >= MAX_SCHEMA_DEPTH:
                raise _too_deep()
            self._path.add(identity)
            cached = self._measured[identity] = self._container(cast("dict[str, object] | list[object]", value), level)
            self._path.discard(identity)
        if cached[0] > MAX_SCHEMA_VALUES:
            raise TooCostly(f"has more than {MAX_SCHEMA_VALUES} JSON values when its references are followed")
        if level + cached[1] > MAX_SCHEMA_DEPTH:
            raise _too_deep()
        return cached

    def _container(self, value: dict[str, object] | list[object], level: int) -> tuple[int, int]:
        children = list(value.values()) if isinstance(value, dict) else value
        if isinstance(value, dict):
            if not _UNBOUNDED.isdisjoint(value) or (value is not self._root and _is_resource(value)):
                self.bounded = False
            self._patterns(value)
            reference = value.get("$ref")
            if isinstance(reference, str):
                children = [*children, self._target(reference)]
        values, depth = 1, 0
        for child in children:
            below, levels = self.node(child, level + 1)
            values += below
            depth = max(depth, levels)
        return values, depth + 1

    def _target(self, reference: str) -> object:
        if reference == "#":
            return self._root
        if reference.startswith("#/"):
            place: object = self._root
            for step in _pointer(reference[2:]).split("/"):
                place = _below(place, step.replace("~1", "/").replace("~0", "~"))
            if place is not None:
                return place
        # An anchor, another document, or an invalid reference.
        self.bounded = False
        return None

    def _patterns(self, schema: dict[str, object]) -> None:
        patterns = [schema.get("pattern"), *_keys(schema.get("patternProperties"))]
        self.pattern_states += sum(_states(pattern) for pattern in patterns if isinstance(pattern, str))


def _pointer(fragment: str) -> str:
    try:
        return decoded(fragment.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    except ValueError:
        raise TooCostly("has a reference with too many percent signs") from None


def _below(place: object, step: str) -> object:
    if isinstance(place, dict):
        return cast("dict[str, object]", place).get(step)
    if isinstance(place, list) and step.isascii() and step.isdigit() and len(step) < 7:
        items = cast("list[object]", place)
        return items[int(step)] if int(step) < len(items) else None
    return None


def _is_resource(schema: dict[str, object]) -> bool:
    """Returns True if the schema is a document of its own, inside which references have another base."""
    return isinstance(schema.get("$id"), str) or isinstance(schema.get("id"), str)


def _keys(value: object) -> list[object]:
    return [*cast("dict[object, object]", value)] if isinstance(value, dict) else []


def _states(pattern: str) -> int:
    """Returns the number of states that the pattern can have, with nested repetitions expanded."""
    states = len(pattern) + 1
    for least, most in _COUNTED.findall(pattern):
        states = min(states * max(int(least), int(most or 0), 1), _MAX_PATTERN_STATES)
    return states


def _too_deep() -> TooCostly:
    return TooCostly(f"is nested deeper than {MAX_SCHEMA_DEPTH} levels when its references are followed")
