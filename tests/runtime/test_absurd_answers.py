"""Model APIs that count nonsense or ask for endless patience, and runs that cannot be written: each alone is hurt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from msgspec.json import decode

from runtime.kit import MoodyStore, ended, engine_on, facts, new_thread, plan
from weftline.kernel.entries import AttemptFailed, AttemptStarted, CallOpened, Limits, ModelRef, RunEnded, TurnCompleted
from weftline.kernel.evolve import fold
from weftline.kernel.state import MAX_COST_NUSD, State, decode_state, encode_state
from weftline.messages import Usage, User
from weftline.plan import RunPlan
from weftline.providers.assemble import MAX_CALLS, Assembler
from weftline.providers.base import (
    CallDone,
    CallStart,
    Chunk,
    Finish,
    ModelInfo,
    ModelRequest,
    ProviderError,
    TextDelta,
    UsageUpdate,
)
from weftline.providers.catalog import Catalog
from weftline.runtime import log
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.model_calls.deltas import Deltas
from weftline.runtime.services import Sink
from weftline.store.memory import MemoryDisk

SCRIPTS = {"hello": {"turns": [{"text": "hi"}]}}


class Odd:
    """A model API with its own ideas. `busy` is always refused, with the patience that it asks for."""

    name = "odd"

    def __init__(self, *, retry_after_s: float = 0.0, tokens: int = 0) -> None:
        self._retry_after_s = retry_after_s
        self._tokens = tokens
        self.asked: list[str] = []

    def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo("busy"), ModelInfo("free"), ModelInfo("chatty")]

    async def aclose(self) -> None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        self.asked.append(request.model)
        if request.model == "chatty":
            yield [chunk for key in range(MAX_CALLS + 1) for chunk in (CallStart(key, "nope"), CallDone(key, "{}"))]
            pytest.fail("what follows is not read")
        if request.model == "busy":
            raise ProviderError("rate_limit", "not now", retry_after_s=self._retry_after_s)
        yield [TextDelta("hi"), UsageUpdate(Usage(input=self._tokens, output=self._tokens)), Finish("end_turn")]


async def run_of(provider: Odd, asked: RunPlan) -> tuple[list[Any], RunEnded]:
    models = Catalog()
    models.add(provider)
    async with EmbeddedEngine(MoodyStore(MemoryDisk()), models=models) as engine:
        space = await engine.workspace("acme")
        found = await facts(engine, await engine.create(space, asked), space)
    last = found[-1]
    assert isinstance(last, RunEnded)
    return found, last


def asking(model: str, *fallbacks: str) -> RunPlan:
    others = tuple([f"odd:{one}" for one in fallbacks])
    limits = Limits(fallbacks=len(others))
    return RunPlan(messages=(User.of("x"),), model=f"odd:{model}", fallbacks=others, limits=limits)


async def test_provider_asking_for_long_patience_is_left_for_another() -> None:
    provider = Odd(retry_after_s=3_000.0)
    found, last = await run_of(provider, asking("busy", "free"))
    assert last.status == "succeeded" and provider.asked == ["busy", "free"]
    (failed,) = [fact for fact in found if isinstance(fact, AttemptFailed)]
    assert failed.retry_at is None and not failed.retryable


async def test_answer_with_too_many_calls_ends_the_attempt() -> None:
    provider = Odd()
    found, last = await run_of(provider, asking("chatty", "free"))
    assert last.status == "succeeded" and provider.asked == ["chatty", "free"]
    (failed,) = [fact for fact in found if isinstance(fact, AttemptFailed)]
    assert failed.cls == "server" and not failed.retryable and failed.estimated
    assert not any(isinstance(fact, CallOpened) for fact in found)


class Emitted:
    """Where deltas go."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def emit(self, kind: str, lines: bytes, count: int = 1) -> None:
        assert lines.count(b"\n") == count - 1
        self.texts += [decode(one)["text"] for one in lines.split(b"\n")]


def test_thousands_of_deltas_become_some_hundred_events() -> None:
    sink, assembler = Emitted(), Assembler("odd")
    deltas = Deltas(cast("Sink", sink), turn=0, attempt=1)
    for read in ([TextDelta("x")] * 3, [TextDelta("y")] * 5_000):
        deltas.take(read, assembler.feed(read))
    assert sink.texts[:3] == ["x", "x", "x"]
    assert "".join(sink.texts[3:]) == "y" * 5_000
    assert len(sink.texts) <= 3 + 512


@pytest.mark.parametrize("retry_after_s", [3_601.0, 1e11, float("inf")])
async def test_nobody_waits_for_a_day(retry_after_s: float) -> None:
    provider = Odd(retry_after_s=retry_after_s)
    _, last = await run_of(provider, asking("busy"))
    assert (last.status, last.code, provider.asked) == ("failed", "rate_limit", ["busy"])


async def test_an_absurd_number_of_tokens_is_bounded() -> None:
    found, last = await run_of(Odd(tokens=10**30), asking("free"))
    assert last.status == "succeeded"
    (turn,) = [fact for fact in found if isinstance(fact, TurnCompleted)]
    assert turn.usage == Usage(input=10**12, output=10**12)


def test_log_with_absurd_costs_has_state_that_can_be_stored() -> None:
    turns = [
        (1, fact)
        for turn in range(3)
        for fact in (AttemptStarted(turn, 1, ModelRef("m")), AttemptFailed(turn, 1, "server", cost_nusd=27 * 10**18))
    ]
    state = fold(State(), turns)
    assert state.totals.cost_nusd == MAX_COST_NUSD
    assert decode_state(encode_state(state)) == state


async def test_a_run_that_cannot_be_written_is_given_up_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MoodyStore(MemoryDisk())
    engine, provider = engine_on(store, SCRIPTS)
    poisoned: set[int] = set()

    def encode(state: State) -> bytes:
        if state.thread in poisoned and state.status == "succeeded":
            raise OverflowError("can't serialize ints")
        return encode_state(state)

    monkeypatch.setattr(log, "encode_state", encode)
    async with engine:
        space = await engine.workspace("acme")
        _, thread = await new_thread(store)
        poisoned.add(thread)
        bad, *good = await asyncio.gather(
            engine.create(space, plan("hello"), thread=thread),
            *[engine.create(space, plan("hello")) for _ in range(5)],
        )
        for run_id in good:
            assert (await ended(engine, run_id, space)).status == "succeeded"
        last = await ended(engine, bad, space)
        assert (last.status, last.code) == ("failed", "worker_error")
    assert len(provider.requests) == 5 + 3
