"""The form in which the log has arguments: JSON that was validated, and is validated again before it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from msgspec.json import Encoder

from weftline.text.canonical import NotCanonical, canonical_value
from weftline.tools.validation_work import NOT_SCHEMAS, TooMuchWork, count, counting, is_recursive, needs_counting

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import CoreSchema, ErrorDetails, SchemaSerializer, SchemaValidator


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


LARGE_BYTES = 256 * 1024
"""Of larger arguments, only the first thing that is wrong with each list is found: a hundred thousand take long."""
MAX_LISTED = 1_000
"""More things than this that are wrong with a value are not listed: it takes 2 µs for each, and more in unions."""


class NotStored(Exception):
    """Validators change what they have returned themselves, so that reading arguments back gives others."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__("its validators change what they have returned")
        self.names = tuple(names)


class StoredForm:
    """Reads the arguments of a tool, as a pydantic model, and writes them as canonical bytes."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._schema = model.__pydantic_core_schema__
        self._counts = needs_validator(self._schema)
        self._validator = validator_of(self._schema) if self._counts else model.__pydantic_validator__
        self._serializer = serializer_of(self._schema)
        self._has_own_serializers = has_own_serializers(self._schema)

    def read(self, data: bytes) -> BaseModel:
        """Returns the model. Raises what validators raise, and `TooMuchWork`."""
        if len(data) > LARGE_BYTES:
            with counting():
                return self._failing_fast.validate_json(data)
        if not self._counts:
            return self._validator.validate_json(data)
        with counting():
            return self._validator.validate_json(data)

    def listed(self, error: ValidationError, data: bytes) -> list[ErrorDetails] | None:
        """Returns what is wrong with data that `read` has refused; None if that is too much to list.

        If it is a lot, only the first things in each list are returned: pydantic can only return all at once.
        """
        if error.error_count() > MAX_LISTED:
            if self._counts:
                return None  # most likely of a recursive union, where the first things in each list are as many
            try:
                with counting():
                    self._failing_fast.validate_json(data)
            except validation_error() as first:
                error = first
            if error.error_count() > MAX_LISTED:
                return None
        return error.errors(include_url=False, include_context=False, include_input=False)

    @cached_property
    def _failing_fast(self) -> SchemaValidator:
        return validator_of(self._schema, fail_fast=True)

    def of(self, model: BaseModel, *, written: bytes = b"") -> bytes:
        """Returns the arguments as JSON: converted and with defaults, as the same arguments are read from that again.

        Types that cannot write what they read are stored as they were `written`, which is validated again before use.

        Raises:
            NotStored: if the validators change what they have returned.
            NotCanonical: if JSON cannot hold the values.
        """
        try:
            value = dumped(self._serializer, model)
        except ValueError:
            return written
        final = canonical_value(value)
        if final == written:
            return written
        try:
            again = self.read(final)
        except TooMuchWork:
            raise
        except Exception:  # what reads a type may be the author's own code
            return written
        second = dumped(self._serializer, again)
        if canonical_value(second) == final:
            return final
        # A default need not be of its type, and is when it is read back: that is what is stored then.
        if model == again and self.gives_back(again, canonical_value(second)):
            return canonical_value(second)
        if self._has_own_serializers:  # a form of the author's, which only their own serializers write
            return written
        raise NotStored(_different(value, second))

    def gives_back(self, model: BaseModel, stored: bytes) -> bool:
        """Returns whether these bytes, which the model was read from, are what is stored for it."""
        try:
            return self.of(model, written=stored) == stored
        except (NotStored, NotCanonical, RecursionError):
            return False


def validation_error() -> type[ValidationError]:
    """Returns the error of validators. Imported when it is needed: a tool that has any has imported pydantic by
    then.
    """
    from pydantic import ValidationError

    return ValidationError


def _different(one: object, other: object) -> list[str]:
    """Returns the names of the arguments that two JSON objects have in a different form."""
    first, second = cast("dict[str, object]", one), cast("dict[str, object]", other)
    return [name for name, value in first.items() if name not in second or second[name] != value]
