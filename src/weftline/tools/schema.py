"""Arguments against JSON Schema.

Client tools bring schemas that we did not write. One that does not compile, or that points at another document, is
still shown to the model but not enforced: nothing is ever fetched, and a schema never fails a run.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import Raw

from weftline import prompts
from weftline.canonical import NotCanonical, canonical_value, parse
from weftline.tools.base import InvalidArguments, Issue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsonschema_rs import Validator

EMPTY_OBJECT_SCHEMA = Raw(b'{"type":"object","properties":{}}')

MAX_ISSUES = 20
_MAX_MESSAGE_CHARS = 300


class ArgsValidator:
    """Checks arguments against one schema; `ArgsValidator.of(schema)` compiles each schema once.

    `enforced` is False for a schema that does not compile offline; then every argument object is let through.
    """

    __slots__ = ("_validator",)

    def __init__(self, schema: bytes) -> None:
        self._validator = _compiled(schema)

    @staticmethod
    def of(schema: bytes | Raw) -> ArgsValidator:
        """The validator of a schema, from a bounded cache keyed by the schema's bytes."""
        return _cached(bytes(schema))

    @property
    def enforced(self) -> bool:
        return self._validator is not None

    def validate(self, args: bytes) -> tuple[Issue, ...]:
        """What is wrong with `args` (JSON), at most 20 issues; empty when they fit. Paths are JSON Pointers."""
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


def object_args(text: str) -> tuple[dict[str, object], bytes]:
    """The arguments that a model wrote, as a dict and as canonical bytes. No text at all stands for `{}`.

    Raises:
        InvalidArguments: when the text is not a JSON object.
    """
    try:
        value = parse("{}" if not text or text.isspace() else text)
        if isinstance(value, dict):
            args = cast("dict[str, object]", value)
            return args, canonical_value(args)
    except NotCanonical as error:
        message = f"The arguments are not valid JSON: {error}."
        raise InvalidArguments(message, (Issue("", str(error), "json"),)) from None
    raise InvalidArguments("The arguments must be a JSON object.", (Issue("", "must be a JSON object", "type"),))


def described(name: str, issues: tuple[Issue, ...]) -> str:
    """One sentence for the model that lists what is wrong."""
    return prompts.invalid_arguments(name, [f"{issue.path or '(root)'}: {issue.message}" for issue in issues])


def object_schema(raw: Raw | None) -> Raw:
    """`raw` as it came when it is an object schema with properties, otherwise the empty object schema."""
    schema = _decoded(raw)
    if schema is not None and schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        return cast(Raw, raw)
    return EMPTY_OBJECT_SCHEMA


def object_root(raw: Raw | None) -> Raw | None:
    """`raw` as it came when its root describes an object (with or without properties), otherwise None."""
    schema = _decoded(raw)
    return raw if schema is not None and schema.get("type") == "object" else None


def pointer(path: Iterable[str | int]) -> str:
    """JSON Pointer of a path; empty for the root."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


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
def _cached(schema: bytes) -> ArgsValidator:
    return ArgsValidator(schema)


def _compiled(schema: bytes) -> Validator | None:
    import jsonschema_rs

    try:
        value = parse(schema)
        if not isinstance(value, dict | bool):
            return None
        document = cast("dict[str, object] | bool", value)
        return jsonschema_rs.validator_for(document, offline=True)
    except (ValueError, jsonschema_rs.ReferencingError):
        return None
