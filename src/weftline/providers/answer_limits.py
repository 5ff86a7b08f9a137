"""How much one answer of a model may contain.

A model's own limit on its output keeps any honest answer far below these. Whoever runs a model API may send what they
like, and each call and each part costs the event loop time that every workspace shares. An answer is cut off where it
exceeds a limit: what follows is not read.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

from weftline.providers.base import ProviderError

MAX_CALLS: Final = 1_024
"""Tool calls. Handling this many takes some 50 ms, a fraction of a millisecond for each."""
MAX_PARTS: Final = 4_096
"""Parts in all: calls, stretches of text and of thinking, images, tools that the provider ran, opaque blocks."""
MAX_NAME_CHARS: Final = 1_024
"""Of a tool's name, which some APIs send in pieces."""


def too_many(what: str, limit: int) -> ProviderError:
    """The same request would be answered in the same way, so it is not repeated; it was billed all the same."""
    message = f"The model's answer has more than {limit:,} {what}."
    return ProviderError("server", message, code="answer_too_large", retryable=False, unanswered=True)


def too_many_calls() -> ProviderError:
    return too_many("tool calls", MAX_CALLS)


def too_many_parts() -> ProviderError:
    return too_many("parts", MAX_PARTS)


def bounded(parts: Sized) -> None:
    """Raises `ProviderError` if what was collected of an answer has too many parts."""
    if len(parts) > MAX_PARTS:
        raise too_many_parts()
