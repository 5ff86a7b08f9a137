"""What a model call is said to have used, from what its provider reported and what it streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest
from campaigns.simulation.server import WallClock

from runtime.kit import MoodyStore
from runtime.test_parked import on_virtual_time
from weftline.kernel.entries import AttemptFailed, decode_fact
from weftline.kernel.state import CallModel
from weftline.messages import Usage, User
from weftline.plan import RunPlan
from weftline.providers.assemble import Assembler
from weftline.providers.base import Chunk, Finish, ModelInfo, ModelRequest, TextDelta, UsageUpdate
from weftline.providers.catalog import Catalog
from weftline.runtime.conversation import Conversation
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.live import WorkingSet
from weftline.runtime.model_calls.model_call import abandoned
from weftline.runtime.model_calls.spending import ModelUsage, spent
from weftline.store.memory import MemoryDisk

END = Finish("end_turn")


def answer(text: str, *chunks: Chunk) -> Assembler:
    assembler = Assembler("stand-in")
    assembler.feed([TextDelta(text), *chunks])
    return assembler


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (Usage(input=7, output=5), ModelUsage(Usage(input=7, output=5))),
        (Usage(input=7), ModelUsage(Usage(input=7, output=2), estimated=True)),
        (Usage(output=5), ModelUsage(Usage(input=100, output=5), estimated=True)),
        (Usage(), ModelUsage(Usage(input=100, output=2), estimated=True)),
    ],
)
def test_uncounted_tokens_of_a_complete_answer_are_estimated(reported: Usage, expected: ModelUsage) -> None:
    assert spent(answer("abcdefgh", UsageUpdate(reported), END), estimate=100) == expected


def test_an_answer_without_output_is_no_estimate() -> None:
    assert spent(answer("", UsageUpdate(Usage(input=7)), END), estimate=100) == ModelUsage(Usage(input=7))


@pytest.mark.parametrize(
    ("text", "output", "expected"),
    [
        ("abc", 1, ModelUsage(Usage(input=7, output=1), estimated=True)),  # the count that the answer began with
        ("abcdefgh", 1, ModelUsage(Usage(input=7, output=2), estimated=True)),
        ("abcdefgh", 40, ModelUsage(Usage(input=7, output=40))),
        ("", 1, ModelUsage(Usage(input=7, output=1))),
    ],
)
def test_interrupted_answer_is_an_estimate_unless_its_report_suffices(
    text: str, output: int, expected: ModelUsage
) -> None:
    cut = answer(text, UsageUpdate(Usage(input=7, output=output)))
    assert spent(cut, estimate=100, unanswered=True) == expected


@pytest.mark.parametrize("chunks", [(), (END,)], ids=["under way", "complete"])
def test_unfinished_provider_report_is_an_estimate(chunks: tuple[Chunk, ...]) -> None:
    work = WorkingSet("run_1", RunPlan(messages=()), Conversation([]))
    work.answering = answer("abcdefgh", UsageUpdate(Usage(input=7, output=40)), *chunks)
    heads = [abandoned(CallModel(0, 1), work, estimate=100, goes_on=goes_on).head for goes_on in (True, False)]
    assert [getattr(head, "usage", None) for head in heads] == [Usage(input=7, output=40)] * 2
    assert [getattr(head, "estimated", None) for head in heads] == [not chunks, False]


class Stubborn:
    """A model that has reported what it has used so far, and goes on however often it is cancelled."""

    name = "stubborn"

    def __init__(self) -> None:
        self.reported, self.let_go = asyncio.Event(), asyncio.Event()

    def models(self) -> Sequence[ModelInfo]:
        return (ModelInfo(vendor_id="m", label="m", tools=True, reasoning=False),)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        yield [UsageUpdate(Usage(input=7, output=50)), TextDelta("ab")]
        self.reported.set()
        while not self.let_go.is_set():
            with suppress(asyncio.CancelledError):
                await self.let_go.wait()

    async def aclose(self) -> None: ...


@pytest.mark.parametrize("how", ["cancel", "stop"])
def test_latest_count_of_model_that_does_not_stop_is_estimate(how: str) -> None:
    async def scenario(clock: WallClock) -> None:
        disk, model, models = MemoryDisk(), Stubborn(), Catalog()
        models.add(model)
        engine = EmbeddedEngine(MoodyStore(disk), models=models, clock=clock)
        await engine.start()
        space = await engine.workspace("acme")
        run_id = await engine.create(space, RunPlan(messages=(User.of("x"),), model="stubborn:m"))
        key = await engine.locate(run_id, workspace=space)
        await model.reported.wait()
        if how == "cancel":
            await engine.cancel(key)
        await engine.stop(drain_s=0)
        model.let_go.set()
        heads = [decode_fact.decode(one.head) for one in await MoodyStore(disk).log.facts(key)]
        (failed,) = [head for head in heads if isinstance(head, AttemptFailed)]
        assert (failed.usage, failed.estimated) == (Usage(input=7, output=50), True)

    on_virtual_time(scenario)
