"""Writing a type to the log and reading it back with nothing lost: every field, under the name that it is read by.

What a type declares about its JSON form is meant for readers elsewhere: other names, fields that are left out, dates
in a local format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from msgspec.json import Encoder

from weftline.tools.validation_work import NOT_SCHEMAS, count, is_recursive, needs_counting

if TYPE_CHECKING:
    from pydantic_core import CoreSchema, SchemaSerializer, SchemaValidator

_Schema: TypeAlias = dict[str, Any]

_FIELDS = frozenset({"model-field", "dataclass-field", "typed-dict-field"})
_WITH_FIELDS = frozenset({"model", "dataclass", "typed-dict"})
_SETS = frozenset({"set", "frozenset"})
_LISTS = frozenset({"list", "tuple", "set", "frozenset"})


def validator_of(schema: CoreSchema, *, fail_fast: bool = False) -> SchemaValidator:
    """Returns what reads values of a schema, as pydantic does, except that an `Iterable` is read at once, as a list:
    pydantic reads it when it is iterated over, and only once.

    It counts its work, so it is used within `validation_work.counting`. With `fail_fast`, only the first thing that is
    wrong with a list is reported.
    """
    from pydantic_core import SchemaValidator

    change = partial(_read_back, recursive=is_recursive(schema), fail_fast=fail_fast)
    # The third argument: the validators and serializers that models already have are not used for them.
    return SchemaValidator(_rewritten(schema, change), None, False)


def counting_validator_of(schema: CoreSchema) -> SchemaValidator | None:
    """Returns what reads values as pydantic does, and counts its work; None if there is nothing to count."""
    from pydantic_core import SchemaValidator

    recursive, found = is_recursive(schema), list[_Schema]()

    def change(one: _Schema) -> None:
        if needs_counting(one, recursive=recursive):
            count(one)
            found.append(one)

    counting = _rewritten(schema, change)
    return SchemaValidator(counting, None, False) if found else None


def serializer_of(schema: CoreSchema) -> SchemaSerializer:
    """Returns what writes values of a schema: every field, under the name that it is read by.

    The serializers of the types' authors are not used: they may write less than the value, or what no type reads.
    """
    from pydantic_core import SchemaSerializer

    return SchemaSerializer(_rewritten(schema, _written_as_read), None, False)


def dumped(serializer: SchemaSerializer, value: object) -> object:
    """Returns a value as JSON values. Raises `ValueError` if it cannot be written."""
    return serializer.to_python(value, mode="json", round_trip=True, warnings=False)


def has_own_serializers(schema: CoreSchema) -> bool:
    """Returns True if the author of a type has written a serializer for it."""
    found: list[_Schema] = []

    def look(one: _Schema) -> None:
        if _is_custom(one.get("serialization")):
            found.append(one)

    _rewritten(schema, look)
    return bool(found)


def needs_validator(schema: CoreSchema) -> bool:
    """Returns True if `validator_of` reads such values in another way than pydantic, or counts its work."""
    found: list[_Schema] = []
    recursive = is_recursive(schema)

    def look(one: _Schema) -> None:
        if one["type"] == "generator" or needs_counting(one, recursive=recursive):
            found.append(one)

    _rewritten(schema, look)
    return bool(found)


def _rewritten(schema: CoreSchema, change: Callable[[_Schema], None]) -> CoreSchema:
    return cast("CoreSchema", _changed(schema, change))


def _changed(part: object, change: Callable[[_Schema], None]) -> object:
    """Returns a copy of a part of a schema, with `change` applied to each schema in it."""
    if isinstance(part, list | tuple):
        items = [_changed(one, change) for one in cast("list[object]", part)]
        return items if isinstance(part, list) else tuple(items)
    if not isinstance(part, Mapping):  # one that pydantic has put off is a mapping, but not a dict
        return part
    schema = cast("_Schema", part)
    if not isinstance(schema.get("type"), str):  # schemas by the names of fields or the tags of a union
        return {name: _changed(one, change) for name, one in schema.items()}
    made = {name: one if name in NOT_SCHEMAS else _changed(one, change) for name, one in schema.items()}
    change(made)
    return made


def _read_at_once(schema: _Schema) -> None:
    if schema["type"] == "generator":
        schema["type"] = "list"


def _read_back(schema: _Schema, *, recursive: bool, fail_fast: bool) -> None:
    _read_at_once(schema)
    if fail_fast and schema["type"] in _LISTS:
        schema["fail_fast"] = True
    if needs_counting(schema, recursive=recursive):
        count(schema)


def _written_as_read(schema: _Schema) -> None:
    _read_at_once(schema)
    if schema["type"] in _FIELDS:
        for option in ("serialization_alias", "serialization_exclude", "serialization_exclude_if"):
            schema.pop(option, None)
        if name := _read_as(schema.get("validation_alias")):
            schema["serialization_alias"] = name
        if schema.get("init") is False:  # a dataclass sets it itself
            schema["serialization_exclude"] = True
    if _is_custom(schema.get("serialization")):
        del schema["serialization"]
    if schema["type"] in _SETS:
        # Each process has its own order of the items of a set.
        schema["serialization"] = {"type": "function-wrap", "function": _sorted_items}
    if schema["type"] in _WITH_FIELDS:
        config: dict[str, Any] = schema.get("config") or {}
        schema["config"] = {
            **{option: value for option, value in config.items() if not option.startswith("ser_json_")},
            "ser_json_bytes": config.get("val_json_bytes", "utf8"),
            "serialize_by_alias": config.get("validate_by_alias", True),
        }


def _read_as(alias: object) -> str:
    """The first name among the aliases of a field; empty if it has none, or only paths into other values."""
    if isinstance(alias, str):
        return alias
    choices = cast("list[Any]", alias) if isinstance(alias, list) else []
    paths: list[Any] = choices if choices and isinstance(choices[0], list) else [choices]
    return next((path[0] for path in paths if len(path) == 1 and isinstance(path[0], str)), "")


def _sorted_items(value: object, write: Callable[[object], list[object]]) -> list[object]:
    return sorted(write(value), key=Encoder(order="sorted").encode)


def _is_custom(serialization: _Schema | None) -> bool:
    """Returns True if the author of a type has written this serializer; pydantic has its own for some types, such as
    paths.
    """
    function: object = (serialization or {}).get("function")
    return function is not None and not getattr(function, "__module__", "").startswith("pydantic.")
