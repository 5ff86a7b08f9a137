"""How long model calls hold a run whose model server never answers. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.server import WallClock
from msgspec.structs import replace

from runtime.kit import MoodyStore, facts, plan
from weftline.kernel.entries import AttemptFailed, Fact, Limits, RunEnded, TurnCompleted
from weftline.providers.base import Chunk, Finish, ModelInfo, ModelRequest, ProviderError, TextDelta
from weftline.providers.catalog import Catalog
from weftline.runtime.embedded import EmbeddedEngine
from weftline.store.memory import MemoryDisk

DAY_S = 86_400


class Silent:
    """A provider that never answers. It gives up itself after `patience_s`, as providers do."""

    name = "silent"

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        if request.model == "good":
            yield [TextDelta("Hello."), Finish("end_turn")]
            return
        await asyncio.sleep(min(self._patience_s, request.timeout_s))
        raise ProviderError("timeout", "silence", unanswered=True)

    def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo(name) for name in ("bad", "worse", "good")]

    async def aclose(self) -> None:
        pass


def played(patience_s: float, *models: str, **limits: float) -> tuple[list[Fact], float]:
    """The facts of a run, and how long its model calls took."""
    found: list[Fact] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        catalog = Catalog()
        catalog.add(Silent(patience_s))
        store = MoodyStore(MemoryDisk())
        async with EmbeddedEngine(store, models=catalog, clock=WallClock(loop), **limits) as engine:  # pyright: ignore[reportArgumentType]
            space = await engine.workspace("acme")
            first, *others = [f"silent:{name}" for name in models]
            asked = replace(plan("x"), model=first, fallbacks=tuple(others), limits=Limits(fallbacks=len(others)))
            run_id = await engine.create(space, asked)
            await asyncio.sleep(DAY_S)
            found.extend(await facts(engine, run_id, space))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
    took = [fact.active_us for fact in found if isinstance(fact, AttemptFailed | TurnCompleted)]
    return found, sum(took) / 1e6


@pytest.mark.parametrize("patience_s", [20, 300, 10_000])
def test_attempts_of_a_turn_have_one_time_limit_together(patience_s: float) -> None:
    found, took_s = played(patience_s, "bad")
    failed = [fact for fact in found if isinstance(fact, AttemptFailed)]
    assert took_s == pytest.approx(min(900, 4 * patience_s), abs=1)
    assert not failed[-1].retryable or len(failed) == 4
    assert isinstance(found[-1], RunEnded) and found[-1].code == "timeout"


def test_time_limit_over_attempts_can_be_set() -> None:
    assert played(300, "bad", model_retries_timeout_s=700)[1] == pytest.approx(700, abs=1)
    assert played(300, "bad", model_retries_timeout_s=10, model_timeout_s=400)[1] == pytest.approx(400, abs=1)


def test_each_fallback_has_the_whole_time_limit() -> None:
    found, took_s = played(10_000, "bad", "worse", "good")
    assert took_s == pytest.approx(2 * 900, abs=2)
    assert isinstance(found[-1], RunEnded) and found[-1].status == "succeeded"
