"""A provider's calls: how many at a time, what a refusal changes, and in which order they wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from weftline.messages import Usage
from weftline.providers.base import Chunk, Finish, ModelInfo, ModelRequest, ProviderError, TextDelta, UsageUpdate
from weftline.providers.throttle import Throttle, ThrottledProvider

REQUEST = ModelRequest("m", ())


class Gated:
    """A provider whose calls end when the test lets them."""

    name = "gated"
    flavour = "mint"

    def __init__(self) -> None:
        self.begun: list[asyncio.Future[ProviderError | None]] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        gate = asyncio.get_running_loop().create_future()
        self.begun.append(gate)
        error = await gate
        if error is not None:
            raise error
        yield (TextDelta("hi"), UsageUpdate(Usage(input=30, output=30)), Finish("end_turn"))

    def models(self) -> Sequence[ModelInfo]:
        return ()

    async def aclose(self) -> None:
        return None


async def _call(provider: ThrottledProvider) -> int:
    count = 0
    async for chunks in provider.stream(REQUEST):
        count += len(chunks)
    return count


async def _turn_of_the_loop() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_calls_beyond_the_limit_wait_for_their_turn_in_order() -> None:
    inner = Gated()
    provider = ThrottledProvider(inner, Throttle(2))
    calls = [asyncio.create_task(_call(provider)) for _ in range(4)]
    await _turn_of_the_loop()
    assert len(inner.begun) == 2
    inner.begun[0].set_result(None)
    await _turn_of_the_loop()
    assert len(inner.begun) == 3
    for gate in inner.begun[1:]:
        gate.set_result(None)
    await _turn_of_the_loop()
    inner.begun[3].set_result(None)
    assert await asyncio.gather(*calls) == [3, 3, 3, 3]
    assert provider.throttle.under_way == 0


async def test_refusal_halves_concurrency_and_success_restores_it() -> None:
    inner = Gated()
    throttle = Throttle(8)
    provider = ThrottledProvider(inner, throttle)
    calls = [asyncio.create_task(_call(provider)) for _ in range(8)]
    await _turn_of_the_loop()
    for gate in inner.begun[:4]:
        gate.set_result(ProviderError("rate_limit", "slow down"))
    await _turn_of_the_loop()
    assert throttle.limit == 4.0
    for gate in inner.begun[4:]:
        gate.set_result(None)
    await asyncio.gather(*calls, return_exceptions=True)
    assert 4.0 < throttle.limit < 8.0


async def test_no_call_begins_before_time_that_provider_asked_for() -> None:
    inner = Gated()
    throttle = Throttle(4)
    throttle.refused(3600.0)
    waiting = asyncio.create_task(_call(ThrottledProvider(inner, throttle)))
    await _turn_of_the_loop()
    assert inner.begun == []
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert throttle.under_way == 0


async def test_limit_of_tokens_holds_back_what_would_be_over_it() -> None:
    inner = Gated()
    throttle = Throttle(4, tokens_per_minute=50)
    provider = ThrottledProvider(inner, throttle)
    first = asyncio.create_task(_call(provider))
    await _turn_of_the_loop()
    inner.begun[0].set_result(None)
    await first
    second = asyncio.create_task(_call(provider))
    await _turn_of_the_loop()
    assert len(inner.begun) == 1
    second.cancel()
    await asyncio.wait([second])


async def test_caller_that_gives_up_leaves_its_place_to_next() -> None:
    inner = Gated()
    provider = ThrottledProvider(inner, Throttle(1))
    first, second, third = (asyncio.create_task(_call(provider)) for _ in range(3))
    await _turn_of_the_loop()
    second.cancel()
    await asyncio.wait([second])
    inner.begun[0].set_result(None)
    await _turn_of_the_loop()
    inner.begun[1].set_result(None)
    assert await asyncio.gather(first, third) == [3, 3]


async def test_other_provider_methods_are_forwarded() -> None:
    assert ThrottledProvider(Gated(), Throttle()).flavour == "mint"


async def test_call_cancelled_as_another_ends_is_cancelled_once() -> None:
    throttle = Throttle(1)
    await throttle.enter()
    waiting = [asyncio.create_task(throttle.enter()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    throttle.leave()  # before the task has noticed
    await asyncio.wait(waiting, timeout=60)
    assert waiting[0].cancelled() and waiting[1].done() and waiting[1].exception() is None
    assert throttle.under_way == 1
