"""The form in which the log has arguments that were validated: bytes from which the same arguments can be read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast

from msgspec.json import Encoder, decode

from weftline.text.canonical import NotCanonical, canonical_value
from weftline.tools.alike import alike
from weftline.tools.stored_schema import dumped, needs_validator, serializer_of, validator_of
from weftline.tools.validation_work import TooMuchWork, counting

if TYPE_CHECKING:
    from pydantic import BaseModel, RootModel, ValidationError
    from pydantic_core import ErrorDetails, SchemaSerializer, SchemaValidator

LARGE_BYTES = 256 * 1024
"""Of larger arguments, only the first thing that is wrong with each list is found: a hundred thousand take long."""
MAX_LISTED = 1_000
"""More things than this that are wrong with a value are not listed: it takes 2 µs for each, and more in unions."""

_encode = Encoder(order="sorted").encode
"""As `canonical_value` does, without its checks: bytes that are equal to canonical ones need none."""


class NotStored(Exception):
    """Arguments cannot be written to the log and read back. `names` says which, as far as is known."""

    def __init__(self, reason: str, names: Iterable[str], *, changed: bool = False) -> None:
        super().__init__(reason)
        self.names = tuple(dict.fromkeys(names))
        self.changed = changed
        """Whether validators changed what they had returned themselves."""


class StoredForm:
    """Reads the arguments of a tool, as a pydantic model, and writes them as canonical bytes."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model
        self._schema = model.__pydantic_core_schema__
        self._counts = needs_validator(self._schema)
        self._validator = validator_of(self._schema) if self._counts else model.__pydantic_validator__
        self._serializer = serializer_of(self._schema, custom=True)

    @cached_property
    def _without_custom(self) -> SchemaSerializer:
        return serializer_of(self._schema, custom=False)

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
        """Returns bytes from which the same model can be read, and which are written for that model in turn.

        They are `written`, from which the model was read, if at most the order of its sets is different.

        Raises:
            NotStored: if there are none.
            NotCanonical: if JSON cannot hold its values.
        """
        try:
            return self._written_by(self._serializer, model, written)
        except (NotStored, NotCanonical) as error:
            try:
                return self._written_by(self._without_custom, model, written)
            except (NotStored, NotCanonical):
                raise error from None

    def gives_back(self, model: BaseModel, stored: bytes) -> bool:
        """Returns whether the model is written as these bytes, apart from the order of its sets.

        Logs of format 8 have arguments as the types themselves write them, with computed fields. Excluded fields are
        not in them, so that a model with such a field is not what was stored.
        """
        if _gives_back(partial(dumped, self._serializer), model, stored):
            return True
        if _gives_back(partial(dumped, self._without_custom), model, stored):
            return True
        return _gives_back(_own_form, model, stored) and _has_all(decode(stored), dumped(self._serializer, model))

    def _written_by(self, serializer: SchemaSerializer, model: BaseModel, written: bytes) -> bytes:
        try:
            value = dumped(serializer, model)
        except ValueError as error:
            raise NotStored(str(error), self._unwritable(serializer, model)) from error
        final = canonical_value(value)
        if final == written or (len(final) == len(written) and _same(decode(written), value, model)):
            return written
        again = self._read_back(final)
        if not _gives_back(partial(dumped, serializer), again, final):
            # A default need not be of its type, and is when it is read back: that is what is written then.
            before, value = value, dumped(serializer, again)
            final = canonical_value(value)
            again = self._read_back(final) if alike(model, again) else None
            if again is None or not _gives_back(partial(dumped, serializer), again, final):
                raise NotStored(
                    "its validators change what they have returned", _different(before, value), changed=True
                )
        if not alike(model, again):
            raise NotStored("what is read back is not equal to it", self._unequal(model, again))
        return final

    def _read_back(self, final: bytes) -> BaseModel:
        try:
            return self.read(final)
        except validation_error() as error:
            found = self.listed(error, final) or []
            names = [str(one["loc"][0]) for one in found if one["loc"]]
            reason = found[0]["msg"] if found else f"{error.error_count():,} errors"
            raise NotStored(f"its validators refuse what was written: {reason}", names) from None
        except TooMuchWork:
            raise
        except Exception as error:
            raise NotStored(f"its validators fail for what was written: {error}", ()) from error

    def _unwritable(self, serializer: SchemaSerializer, model: BaseModel) -> Iterable[str]:
        for field, name in self._names().items():
            try:
                dumped(serializer, model, only=field)
            except ValueError:
                yield name

    def _unequal(self, model: BaseModel, again: BaseModel) -> Iterable[str]:
        one, other, given = vars(model), vars(again), model.model_fields_set
        return [name for field, name in self._names().items() if field in given and not alike(one[field], other[field])]

    def _names(self) -> dict[str, str]:
        """The names of the arguments, by field."""
        return {field: info.alias or field for field, info in self._model.model_fields.items()}


def validation_error() -> type[ValidationError]:
    """Returns the error of validators. Imported when it is needed: a tool that has any has imported pydantic by
    then.
    """
    from pydantic import ValidationError

    return ValidationError


def _own_form(model: BaseModel) -> object:
    return model.model_dump(mode="json", by_alias=True, warnings=False)


def _has_all(stored: object, written: object) -> bool:
    """Returns True if a JSON value has every field of another."""
    if isinstance(stored, dict) and isinstance(written, dict):
        one, other = cast("dict[str, object]", stored), cast("dict[str, object]", written)
        return all(name in one and _has_all(one[name], value) for name, value in other.items())
    if isinstance(stored, list) and isinstance(written, list):
        return all(map(_has_all, cast("list[object]", stored), cast("list[object]", written)))
    return True


def _gives_back(form: Callable[[BaseModel], object], model: BaseModel, stored: bytes) -> bool:
    try:
        value = form(model)
        return _encode(value) == stored or _same(decode(stored), value, model)
    except (TypeError, ValueError, RecursionError):  # it has no such form
        return False


def _different(one: object, other: object) -> Iterable[str]:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return ()
    first, second = cast("dict[str, object]", one), cast("dict[str, object]", other)
    return [name for name in first if name not in second or _encode(first[name]) != _encode(second[name])]


def _same(stored: object, written: object, value: object) -> bool:
    """Returns True if two JSON values are the same, where the second is that of `value`. Each process has its own order
    of the items of a set.
    """
    if getattr(type(value), "__pydantic_root_model__", False):
        value = cast("RootModel[object]", value).root
    if isinstance(value, Set):
        return _without_order(stored) == _without_order(written)
    if isinstance(stored, dict) and isinstance(written, dict):
        one, other = cast("dict[str, object]", stored), cast("dict[str, object]", written)
        parts = dict(zip(other, _parts(value, len(other)), strict=True))
        return one.keys() == other.keys() and all(_same(one[name], other[name], parts[name]) for name in one)
    if isinstance(stored, list) and isinstance(written, list):
        items, others = cast("list[object]", stored), cast("list[object]", written)
        return len(items) == len(others) and all(map(_same, items, others, _parts(value, len(others))))
    return _encode(stored) == _encode(written)


def _parts(value: object, count: int) -> Sequence[object]:
    """The objects that are written as the `count` items of `value`, in that order; None for each if that is unknown."""
    found: Sequence[object] = ()
    if isinstance(value, list | tuple | deque):
        found = [*cast("Iterable[object]", value)]
    elif isinstance(value, dict):
        found = [*cast("dict[object, object]", value).values()]
    elif is_dataclass(value):
        found = [getattr(value, field.name, None) for field in fields(value) if field.init]
    elif (named := getattr(type(value), "__pydantic_fields__", None)) is not None:
        more: dict[str, object] | None = getattr(value, "__pydantic_extra__", None)
        found = [*[getattr(value, name, None) for name in named], *(more or {}).values()]
    return found if len(found) == count else (None,) * count


def _without_order(value: object) -> object:
    """The value with every list sorted. Sets have no lists in them but other sets and tuples."""
    if isinstance(value, list):
        return sorted([_encode(_without_order(one)) for one in cast("list[object]", value)])
    if isinstance(value, dict):
        return {name: _without_order(one) for name, one in cast("dict[str, object]", value).items()}
    return value
