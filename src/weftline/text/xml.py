"""Text inside XML."""

from __future__ import annotations

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


def escaped(text: str) -> str:
    """Escapes text so that it cannot end the element or the attribute that contains it."""
    return text.translate(_ENTITIES)
