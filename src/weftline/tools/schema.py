"""Validates arguments against JSON Schema.

Client tools bring their own schemas. One that does not compile, or that refers to another document, is still sent to
the model but not enforced: nothing is ever fetched, and a schema never fails a run.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import Raw

from weftline.text.canonical import NotCanonical, parse
from weftline.tools.arguments import MAX_ISSUES, Issue, pointer

if TYPE_CHECKING:
    from jsonschema_rs import Validator

EMPTY_OBJECT_SCHEMA = Raw(b'{"type":"object","properties":{}}')

_MAX_MESSAGE_CHARS = 300
_PATTERN_BYTES = 512 * 1024
"""For one compiled pattern; `\\w{1,64}` takes a twentieth of it."""
_BACKTRACK_LIMIT = 100_000


class ArgsValidator:
    """Checks arguments against one schema; `ArgsValidator.of(schema)` compiles each schema once.

    `enforced` is False for a schema that does not compile offline; then every argument object passes.
    The work is not bounded: a server checks untrusted schemas with `weftline.tools.checking`.
    """

    __slots__ = ("_validator",)

    def __init__(self, schema: bytes, *, linear: bool = False) -> None:
        self._validator = _compiled(schema, linear=linear)

    @staticmethod
    def of(schema: bytes | Raw, *, linear: bool = False) -> ArgsValidator:
        """Returns the validator of a schema, from a bounded cache keyed by the schema's bytes.

        `linear` accepts only schemas whose patterns match in linear time.
        """
        return _cached(bytes(schema), linear)

    @property
    def enforced(self) -> bool:
        return self._validator is not None

    def fits(self, args: bytes) -> bool:
        return self._validator is None or self._validator.is_valid(parse(args))

    def validate(self, args: bytes) -> tuple[Issue, ...]:
        """Returns what is wrong with `args` (JSON), at most 20 issues; empty if they are valid.

        Paths are JSON Pointers.
        """
        if self._validator is None:
            return ()
        value = parse(args)
        if self._validator.is_valid(value):
            return ()
        issues: list[Issue] = []
        for error in self._validator.iter_errors(value):
            if len(issues) == MAX_ISSUES:
                break
            issues.append(Issue(pointer(error.instance_path), _short(error.message), error.kind.name))
        return tuple(issues)


def object_schema(raw: Raw | None) -> Raw:
    """Returns `raw` unchanged if it is an object schema with properties, otherwise the empty object schema."""
    schema = _decoded(raw)
    if schema is not None and schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        return cast(Raw, raw)
    return EMPTY_OBJECT_SCHEMA


def object_root(raw: Raw | None) -> Raw | None:
    """Returns `raw` unchanged if its root describes an object (with or without properties), otherwise None."""
    schema = _decoded(raw)
    return raw if schema is not None and schema.get("type") == "object" else None


def _decoded(raw: Raw | None) -> dict[str, object] | None:
    if raw is None:
        return None
    try:
        schema: object = msgspec.json.decode(bytes(raw))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return cast("dict[str, object]", schema) if isinstance(schema, dict) else None


def _short(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE_CHARS else message[: _MAX_MESSAGE_CHARS - 1] + "…"


@lru_cache(maxsize=512)
def _cached(schema: bytes, linear: bool) -> ArgsValidator:
    return ArgsValidator(schema, linear=linear)


def _compiled(schema: bytes, *, linear: bool) -> Validator | None:
    import jsonschema_rs
    from jsonschema_rs import FancyRegexOptions, RegexOptions

    try:
        value = parse(schema)
    except NotCanonical:
        return None
    if not isinstance(value, dict | bool):
        return None
    document = cast("dict[str, object] | bool", value)
    # Only look-around and back-references need the backtracking engine, which gets a limit.
    engines = [RegexOptions(size_limit=_PATTERN_BYTES)]
    others = [] if linear else [FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT)]
    for options in (*engines, *others):
        try:
            return jsonschema_rs.validator_for(document, offline=True, pattern_options=options)
        except jsonschema_rs.ReferencingError:
            return None
        except ValueError:
            continue
    return None
