"""Parts of the bodies that are pydantic models: those of routes that do not describe a run.

Their limits are those of a run's fields of the same meaning, checked by the same functions; see `weftline.spec`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from weftline.spec.fields import words_problem
from weftline.spec.tools import header_name_problem, header_value_problem, headers_problem
from weftline.wire.limits import (
    HEADER_NAME_PATTERN,
    MAX_HEADERS,
    MAX_METADATA_ENTRIES,
    MAX_METADATA_VALUE_CHARS,
    MAX_URL_CHARS,
    METADATA_KEY_PATTERN,
    TOOL_NAME_PATTERN,
    URL_PATTERN,
)

V = TypeVar("V")

NO_NUL = r"^[^\x00]*$"


class Part(BaseModel):
    """Unknown fields are accepted, with a warning."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def _checked(problem: Callable[[Any], str]) -> AfterValidator:
    def check(value: V) -> V:
        if text := problem(value):
            raise PydanticCustomError("refused", "{problem}", {"problem": text})
        return value

    return AfterValidator(check)


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


Metadata: TypeAlias = Annotated[
    dict[
        Annotated[str, StringConstraints(pattern=_whole(METADATA_KEY_PATTERN))],
        Annotated[str, StringConstraints(max_length=MAX_METADATA_VALUE_CHARS, pattern=NO_NUL)],
    ],
    Field(max_length=MAX_METADATA_ENTRIES),
    _checked(words_problem),
]
ToolName: TypeAlias = Annotated[str, StringConstraints(pattern=_whole(TOOL_NAME_PATTERN))]
Url: TypeAlias = Annotated[str, StringConstraints(pattern=_whole(URL_PATTERN), max_length=MAX_URL_CHARS)]
Headers: TypeAlias = Annotated[
    dict[
        Annotated[str, StringConstraints(pattern=_whole(HEADER_NAME_PATTERN)), _checked(header_name_problem)],
        Annotated[str, _checked(header_value_problem)],
    ],
    Field(max_length=MAX_HEADERS),
    _checked(headers_problem),
]
