"""The form in which the log has arguments: JSON that was validated, and is validated again before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, cast

from weftline.text.canonical import NotCanonical, canonical_value
from weftline.tools.stored_schema import dumped, has_own_serializers, needs_validator, serializer_of, validator_of
from weftline.tools.validation_work import TooMuchWork, counting

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails, SchemaValidator

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
