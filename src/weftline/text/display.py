"""Small changes to texts for whoever reads them: code fences, display names, XML."""

from __future__ import annotations

import re
from functools import lru_cache
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


@lru_cache(maxsize=1024)
def titled(name: str) -> str:
    """Returns `Look up` for `look_up`."""
    words = name.replace("_", " ").replace("-", " ").strip()
    return words[:1].upper() + words[1:]


_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


def escaped(text: str) -> str:
    """Escapes text so that it cannot end the element or the attribute that contains it."""
    return text.translate(_ENTITIES)
