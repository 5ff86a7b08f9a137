"""The ids of calls: the provider's own, or one that says which call it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from weftline import Agent, Engine, Limits, ToolContext, tool
from weftline.messages import Assistant, ToolResults
from weftline.providers.base import CallArgs, CallDone, CallStart, Chunk, Finish, ModelInfo, ModelRequest, TextDelta
from weftline.providers.catalog import Catalog

LONG = "ü" * 128
TURNS = [
    [("toolu_1", 1), ("", 2), ("toolu_1", 3), (LONG, 4), (LONG + "x", 5), ("call_0_6", 6), ("", 7)],
    [("toolu_1", 8), ("toolu_2", 9)],
]


class Naming:
    """A model API that names calls as it likes, the same whenever it is asked."""

    name = "naming"

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo("m")]

    async def aclose(self) -> None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        self.requests.append(request)
        turn = len([message for message in request.messages if isinstance(message, Assistant)])
        if turn >= len(TURNS):
            yield [TextDelta("Done."), Finish("end_turn")]
            return
        for key, (id, n) in enumerate(TURNS[turn]):
            yield [CallStart(key, "note", id), CallArgs(key, f'{{"n": {n}}}'), CallDone(key)]
        yield [Finish("tool_use")]


@pytest.mark.requirement("run.call.id")
async def test_call_keeps_the_provider_id_if_it_is_usable(tmp_path: Path) -> None:
    keys: dict[tuple[str, str], str] = {}

    @tool(effect="read")
    def note(n: int, context: ToolContext[object]) -> str:
        """Notes a number."""
        keys[context.run_id, context.call_id] = context.idempotency_key
        return f"{n}."

    models, provider = Catalog(), Naming()
    models.add(provider)
    agent = Agent("naming:m", name="noter", tools=[note], limits=Limits(loop_soft=0))
    expected = [
        ["toolu_1", "call_0_1", "call_0_2", LONG, "call_0_4", "call_0_6", "call_0_6_"],
        ["call_1_0", "toolu_2"],
    ]
    async with asyncio.timeout(60), Engine(tmp_path, agents=[agent], models=models) as engine:
        runs = [await engine.start(agent, "Go.") for _ in range(2)]
        results = [await run.result() for run in runs]
    for result in results:
        calls = [(call.id, call.args["n"], call.result) for call in result.calls]
        ids = [id for turn in expected for id in turn]
        assert calls == [
            (id, n, f"{n}.") for id, (_, n) in zip(ids, [one for turn in TURNS for one in turn], strict=True)
        ]
        assert all(len(id.encode()) <= 256 for id in ids)
        asked = [message.calls for message in result.messages if isinstance(message, Assistant) and message.calls]
        assert [[call.id for call in turn] for turn in asked] == expected
        answers = [message for message in result.messages if isinstance(message, ToolResults)]
        assert [[one.id for one in message.results] for message in answers] == expected
    assert len(keys) == len(set(keys.values())) == 18  # the same id in two turns or runs is another call
    async with asyncio.timeout(60), Engine(tmp_path, agents=[agent], models=models) as engine:
        again = await engine.attach(runs[0].id).result()
        assert [call.id for call in again.calls] == [call.id for call in results[0].calls]
