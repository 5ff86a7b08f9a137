"""Optional features of a provider beyond a name and a stream, and the defaults without them.

    answer = await generate(provider, ModelRequest("some-model", [User.of("Hello")]))
    print(answer.message.text, await builtin_tools(provider))

A provider whose API cannot stream has `generate` instead of `stream`; its answers then come in one piece.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, Protocol, cast

from msgspec import Struct

from weftline.messages import Assistant, Text, Thinking, ToolCall, Usage
from weftline.providers.assemble import collect
from weftline.providers.base import (
    CallDone,
    CallStart,
    Chunk,
    Finish,
    ModelRequest,
    Provider,
    TextDelta,
    ThinkingDelta,
    ThinkingDone,
    UsageUpdate,
    Whole,
)
from weftline.work.outcomes import attempt

logger = logging.getLogger(__name__)


class Generated(Struct, frozen=True):
    """An answer in one piece. `finish_reason` is canonical and lowercase, as in a stream."""

    message: Assistant
    usage: Usage = Usage()
    finish_reason: str | None = "end_turn"


class Generates(Protocol):
    """A provider that answers in one piece."""

    @property
    def name(self) -> str: ...

    async def generate(self, request: ModelRequest) -> Generated:
        """Makes one upstream request. Raises `ProviderError`."""
        ...


async def generate(provider: Provider | Generates, request: ModelRequest) -> Generated:
    """Makes one model call, with the provider's own `generate` if it has one. Raises `ProviderError`."""
    own = getattr(provider, "generate", None)
    if own is not None:
        return await own(request)
    answer = await collect(cast("Provider", provider), request)
    return Generated(answer.message(), answer.usage, answer.finish_reason)


async def builtin_tools(provider: Provider | Generates) -> Sequence[str]:
    """Returns the tools that the provider itself runs, from a sync or async method; empty if it has none."""
    listing = getattr(provider, "builtin_tools", None)
    if listing is None:
        return ()
    found: Sequence[str] | Awaitable[Sequence[str]] = listing()
    return tuple(await found if inspect.isawaitable(found) else found)


async def late_metadata(provider: Provider, request: ModelRequest) -> dict[str, str]:
    """Returns what the provider reports about a complete answer; empty if it reports nothing or fails."""
    own = getattr(provider, "response_metadata", None)
    if own is None:
        return {}
    with attempt(logger, "the provider %s failed to report on its answer", provider.name):
        found: Any = own(request)
        reported = await found if inspect.isawaitable(found) else found
        return {str(name)[:64]: str(value)[:256] for name, value in list(dict(reported or {}).items())[:16]}
    return {}


def streaming(provider: Provider | Generates) -> Provider:
    """Returns the provider itself, or one that streams the result of its `generate`."""
    if hasattr(provider, "stream") or not hasattr(provider, "generate"):
        return cast("Provider", provider)
    return cast("Provider", _InOnePiece(cast("Generates", provider)))


class _InOnePiece:
    """Streams the result of `generate`. Everything else that the provider offers is passed through."""

    def __init__(self, provider: Generates) -> None:
        self._inner = provider

    @property
    def name(self) -> str:
        return self._inner.name

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        yield _chunks(await self._inner.generate(request))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _chunks(answer: Generated) -> list[Chunk]:
    chunks: list[Chunk] = []
    for index, part in enumerate(answer.message.parts):
        match part:
            case Text(text):
                chunks.append(TextDelta(text))
            case Thinking():
                if part.text:
                    chunks.append(ThinkingDelta(part.text))
                chunks.append(ThinkingDone(part.signature, part.opaque))
            case ToolCall():
                chunks.append(CallStart(index, part.name, part.id or None, part.extra))
                chunks.append(CallDone(index, part.args))
            case _:
                chunks.append(Whole(part))
    return [*chunks, UsageUpdate(answer.usage), Finish(answer.finish_reason)]
