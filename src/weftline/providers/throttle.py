"""Limits on a provider's concurrent calls and tokens per minute that adjust themselves.

A refusal for rate or load halves the number of concurrent calls and holds new ones back for as long as the provider
asked; each success lets the number grow again, slowly. No call is refused here: calls wait for their turn, in order.
Retrying is left to the runtime.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from weftline.providers.base import Chunk, ModelInfo, ModelRequest, Provider, ProviderError, UsageUpdate
from weftline.work.outcomes import attempt

logger = logging.getLogger(__name__)

DEFAULT_CONCURRENCY = 1024
_REFUSALS = frozenset({"rate_limit", "overloaded"})
MAX_HOLD_S = 60.0
"""A refusal holds back other runs and models, which it may not concern, no longer than this."""
_SETTLE_S = 1.0
"""Refusals within this time count once, as signs of a single overload."""


class Throttle:
    """Slots for calls. `limit` moves between 1 and `maximum`; without `tokens_per_minute`, tokens are not limited."""

    def __init__(self, maximum: int = DEFAULT_CONCURRENCY, *, tokens_per_minute: int | None = None) -> None:
        self.limit = float(maximum)
        self.under_way = 0
        self._maximum = maximum
        self._per_minute = tokens_per_minute
        self._spent: deque[tuple[float, int]] = deque()
        self._spent_sum = 0
        self._held_until = 0.0
        self._halved_at = -_SETTLE_S
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self) -> None:
        """Waits until the call may begin."""
        if not self._waiting and self._free_in() == 0.0:
            self.under_way += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # it was let in and is already gone
            elif turn in self._waiting:  # otherwise it was skipped in the same iteration of the loop
                self._waiting.remove(turn)
            raise

    def leave(self) -> None:
        self.under_way -= 1
        if self._waiting:
            self._admit()

    def succeeded(self, tokens: int) -> None:
        self.limit = min(self.limit + 1.0 / self.limit, float(self._maximum))
        if self._per_minute is not None:
            self._spent.append((_now(), tokens))
            self._spent_sum += tokens

    def refused(self, retry_after_s: float | None) -> None:
        now = _now()
        if retry_after_s:
            hold_s = min(retry_after_s, MAX_HOLD_S)
            if self._held_until <= now:
                logger.warning("a provider asked for a pause: no new calls to it for %.1f s", hold_s)
            self._held_until = max(self._held_until, now + hold_s)
        if now - self._halved_at >= _SETTLE_S:
            self._halved_at = now
            self.limit = max(min(self.limit, self.under_way) / 2, 1.0)

    def _free_in(self) -> float:
        """Returns the seconds until another call may begin; infinity if one must end first."""
        if self.under_way >= int(self.limit):
            return float("inf")
        now = _now()
        wait_s = max(self._held_until - now, 0.0)
        if self._per_minute is not None:
            while self._spent and self._spent[0][0] <= now - 60.0:
                self._spent_sum -= self._spent.popleft()[1]
            if self._spent_sum >= self._per_minute and self._spent:
                wait_s = max(wait_s, self._spent[0][0] + 60.0 - now)
        return wait_s

    def _admit(self) -> None:
        while self._waiting:
            wait_s = self._free_in()
            if wait_s > 0.0:
                if wait_s != float("inf") and self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)
                return
            turn = self._waiting.popleft()
            if not turn.done():
                self.under_way += 1
                turn.set_result(None)

    def _on_timer(self) -> None:
        self._timer = None
        self._admit()


class ThrottledProvider:
    """A provider whose calls wait for a slot of its throttle. Everything else it offers is passed through."""

    def __init__(self, provider: Provider, throttle: Throttle) -> None:
        self.inner = provider
        self.name = provider.name
        self.throttle = throttle

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        throttle = self.throttle
        await throttle.enter()
        tokens = 0
        stream = self.inner.stream(request)
        try:
            async for chunks in stream:
                if UsageUpdate in map(type, chunks):
                    usage = next(chunk.usage for chunk in reversed(chunks) if type(chunk) is UsageUpdate)
                    tokens = usage.input + usage.output
                yield chunks
        except ProviderError as error:
            if error.cls in _REFUSALS:
                throttle.refused(error.retry_after_s)
            raise
        else:
            throttle.succeeded(tokens)
        finally:
            throttle.leave()
            await close_stream(stream)

    def models(self) -> Sequence[ModelInfo]:
        listing = getattr(self.inner, "models", None)
        return listing() if listing is not None else ()

    async def aclose(self) -> None:
        close = getattr(self.inner, "aclose", None)
        if close is not None:
            await close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def open_stream(provider: Provider, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
    """Opens a stream.

    Errors of the provider are raised by the stream, even if its `stream` is a plain function that raises.
    """
    with attempt() as opening:
        return provider.stream(request)
    return _failed(opening.error)


async def _failed(error: BaseException | None) -> AsyncIterator[Sequence[Chunk]]:
    assert error is not None
    raise error
    yield ()


async def close_stream(stream: AsyncIterator[Sequence[Chunk]]) -> None:
    """Closes a stream and its connection now, rather than when it is garbage-collected."""
    close = getattr(stream, "aclose", None)
    if close is None:
        return
    with attempt(logger, "the stream of a model's answer could not be closed", or_cancelled=True):
        await close()


def _now() -> float:
    return asyncio.get_running_loop().time()
