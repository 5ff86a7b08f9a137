"""Limits on the size of one answer of a model.

A model's own output limit keeps any honest answer far below these. But a model API may send anything, and each call and
part takes time on the event loop that all workspaces share. An answer is cut off where it exceeds a limit, and the rest
is not read.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

from weftline.providers.base import ProviderError

MAX_CALLS: Final = 1_024
"""Tool calls. Handling this many takes about 50 ms."""
MAX_PARTS: Final = 4_096
"""All parts: calls, blocks of text and of thinking, images, tools that the provider ran, opaque blocks."""
MAX_NAME_CHARS: Final = 1_024
"""The length of a tool's name, which some APIs send in pieces."""


def too_many(what: str, limit: int) -> ProviderError:
    """Returns the error for an answer that exceeds a limit.

    It is not retryable, as the same request would get the same answer and be billed again.
    """
    message = f"The model's answer has more than {limit:,} {what}."
    return ProviderError("server", message, code="answer_too_large", retryable=False, unanswered=True)


def too_many_calls() -> ProviderError:
    return too_many("tool calls", MAX_CALLS)


def too_many_parts() -> ProviderError:
    return too_many("parts", MAX_PARTS)


def bounded(parts: Sized) -> None:
    """Raises `ProviderError` if the answer so far has too many parts."""
    if len(parts) > MAX_PARTS:
        raise too_many_parts()
