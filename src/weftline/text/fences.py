"""Removes the code fences that some models put around a JSON answer."""

from __future__ import annotations

import re
from typing import Final

_BEGUN: Final = re.compile(r"\s*```[a-zA-Z]*[ \t]*\r?\n")
_WHOLE: Final = re.compile(_BEGUN.pattern + r"(.*?)\s*```\s*", re.DOTALL)


def without_fence(text: str) -> str:
    """Returns the content of a fence around the whole text; the text itself if there is none."""
    if "```" not in text:
        return text
    fenced = _WHOLE.fullmatch(text)
    return text if fenced is None or "```" in fenced[1] else fenced[1]


def after_fence(text: str) -> str:
    """Returns a text that is still being written, without the fence that it begins with."""
    begun = _BEGUN.match(text)
    return text if begun is None else text[begun.end() :]
