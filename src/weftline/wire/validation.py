"""Describes what is wrong with a body, and where, in JSON's terms, as validators use Python's types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weftline.wire.limits import URL_PATTERN

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_WORDS = {
    "dict_type": "must be a JSON object",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
    "mapping_type": "must be a JSON object",
    "list_type": "must be a JSON array",
    "tuple_type": "must be a JSON array",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "none_required": "must be null",
}
"""By pydantic's error type."""
_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
"""By msgspec's type name."""
_EXPECTED = re.compile(r"Expected `[^`]*`|got `[^`]*`")


def quoted(text: str) -> str:
    """Returns a client's own word for a message: quoted, printable and short."""
    return repr(text if len(text) <= 80 else f"{text[:80]}…")


def path_of(loc: Sequence[int | str]) -> str:
    """Formats a location as `tools[2].name`."""
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            name = step if 0 < len(step) <= 80 and step.isprintable() else quoted(step)
            path = f"{path}.{name}" if path else name
    return path


def words_of(problem: ErrorDetails) -> str:
    if problem["type"] == "string_pattern_mismatch":
        if URL_PATTERN in problem["msg"]:
            return "must be an http or https address"
        if r"'^[^\x00]*$'" in problem["msg"]:
            return "must not contain a NUL character"
    return _WORDS.get(problem["type"], problem["msg"])


def json_words(error: Exception) -> str:
    """Rewords msgspec's message about a value of the wrong type: ``Expected `string`, got `integer` ``."""
    return _EXPECTED.sub(
        lambda found: re.sub(r"\b(str|int|float|bool)\b", lambda one: _TYPES[one[0]], found[0]), str(error)
    )
