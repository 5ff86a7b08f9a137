"""Values of any type that pydantic supports, read from untrusted JSON with a bound on the work.

Among them the return type of a tool's function, to check results that are provided in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from weftline import prompts
from weftline.text.canonical import canonical_value
from weftline.tools.base import ToolOutput
from weftline.tools.stored_form import MAX_LISTED, counting_validator_of
from weftline.tools.validation_work import TooMuchWork, counting, on_loop, without_tags

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


MAX_PROBLEMS = 20


class ReturnType:
    """A return hint, as pydantic understands it.

    One that pydantic does not support, or that means parts, accepts anything.
    """

    def __init__(self, hint: Any) -> None:
        from pydantic import PydanticUserError, TypeAdapter
        from pydantic.errors import PydanticSchemaGenerationError

        self._type: CountedType[Any] | None = None
        if hint is Any or hint is ToolOutput:
            return
        try:
            self._type = CountedType(TypeAdapter(hint))
        except (PydanticUserError, PydanticSchemaGenerationError):
            pass

    @property
    def known(self) -> bool:
        """True if it restricts values."""
        return self._type is not None

    def problem(self, value: object) -> str:
        """Returns what is wrong with a JSON value as a result; empty if nothing is.

        A text may be the JSON of a result, as people who write a message or choose an option can only give texts.
        """
        from pydantic import ValidationError

        if self._type is None:
            return ""
        try:
            self._type.read(canonical_value(value), strict=True)
        except ValidationError as error:
            if isinstance(value, str):
                with suppress(ValidationError, TooMuchWork):
                    self._type.read(value, strict=True)
                    return ""
            return listed(problems_of(error))
        except TooMuchWork as error:
            return str(error)
        return ""


def listed(problems: Sequence[tuple[Sequence[int | str], str]]) -> str:
    """Returns what is wrong, and where: `people[2].name: must be a string; …`."""
    named = [(_path(steps), message) for steps, message in problems[:MAX_PROBLEMS]]
    more = f"; and {len(problems) - MAX_PROBLEMS:,} more" if len(problems) > MAX_PROBLEMS else ""
    return "; ".join([f"{at}: {message}" if at else message for at, message in named]) + more


def _path(steps: Sequence[int | str]) -> str:
    return "".join([f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps]).removeprefix(".")
