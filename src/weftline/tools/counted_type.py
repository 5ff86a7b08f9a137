"""Values of any type that pydantic supports, read from untrusted JSON with a bound on the work."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from weftline import prompts
from weftline.tools.stored_form import MAX_LISTED
from weftline.tools.stored_schema import counting_validator_of
from weftline.tools.validation_work import counting, on_loop, without_tags

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import SchemaValidator

T = TypeVar("T")


class CountedType(Generic[T]):
    def __init__(self, adapter: TypeAdapter[T]) -> None:
        self._adapter = adapter

    @cached_property
    def _validator(self) -> SchemaValidator | None:
        return counting_validator_of(self._adapter.core_schema)

    def read(self, data: str | bytes, *, strict: bool | None = None) -> T:
        """Returns the value. Raises `ValidationError`, what validators raise, and `TooMuchWork`."""
        if self._validator is None:
            return self._adapter.validate_json(data, strict=strict)
        with on_loop(), counting():
            return self._validator.validate_json(data, strict=strict)


def problems_of(error: ValidationError) -> list[tuple[tuple[int | str, ...], str]]:
    """Returns where a value is wrong, and how."""
    if error.error_count() > MAX_LISTED:
        return [((), prompts.calls.TOO_MUCH_TO_LIST)]
    found: list[Any] = error.errors(include_url=False, include_context=False, include_input=False)
    return [(without_tags(one["loc"]), one["msg"]) for one in found]
