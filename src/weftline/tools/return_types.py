"""The return type of a tool's function, to check results that are provided in its place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from weftline.text.canonical import canonical_value
from weftline.tools.base import ToolOutput
from weftline.tools.counted_type import CountedType, problems_of
from weftline.tools.validation_work import TooMuchWork

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
