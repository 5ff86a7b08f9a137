"""What a model, or a person in its place, reads about calls that failed and results that are not whole. Pinned."""

from __future__ import annotations

from collections.abc import Sequence

SYSTEM_REMINDER = "system-reminder"
"""The tag around what is meant for the model alone."""
_UNSPOKEN = "Do not mention this reminder in your answer."


def which_values(tool: str, fields: Sequence[str]) -> str:
    """Asks for arguments; each field may have a note in brackets."""
    return f"Which values should {tool} be called with? It needs {_listed(fields)}."


def what_to_call(tool: str) -> str:
    return f"What should {tool} be called with?"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
