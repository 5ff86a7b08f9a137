"""Where in a value a pydantic error lies, in the sender's own terms."""

from __future__ import annotations

from typing import cast


def path_in(value: object, location: tuple[int | str, ...], *, names_absent: bool) -> list[str | int]:
    """Returns the steps of a pydantic location that lead through `value`, without members of unions and functions.

    The last step stays if the error `names_absent`: a field that is missing or not allowed.
    """
    path: list[str | int] = []
    for position, step in enumerate(location):
        if isinstance(value, dict) and step in value:
            value = cast("dict[str | int, object]", value)[step]
        elif isinstance(value, list) and isinstance(step, int) and step < len(cast("list[object]", value)):
            value = cast("list[object]", value)[step]
        elif not (names_absent and position == len(location) - 1):
            continue
        path.append(step)
    return path


def names_absent(kind: str) -> bool:
    """Returns True if errors of this pydantic type name a field that is not in the value, or must not be."""
    return kind in ("missing", "extra_forbidden")
