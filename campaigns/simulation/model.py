"""The model of the simulation: it calls some of the tools that it is offered, then answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from campaigns.simulation.world import BELOW, Asked, Life
from weftline.kernel.bodies import decode_message, encode
from weftline.messages import Usage
from weftline.providers.base import (
    CallArgs,
    CallDone,
    CallStart,
    Chunk,
    ErrorClass,
    Finish,
    ModelInfo,
    ModelRequest,
    ProviderError,
    TextDelta,
    UsageUpdate,
)
from weftline.providers.catalog import Catalog

MODEL = "sim:plain"
DOOMED = "sim:doomed"
"""A model that a later deploy no longer has."""
DEADLY = "sim:deadly"
"""A model whose answer kills the process in the middle of its stream."""


def catalog(life: Life) -> Catalog:
    models = Catalog(default_model=MODEL)
    models.add(SimModel(life))
    return models


class SimModel:
    """Its texts name the run and the request."""

    name = "sim"

    def __init__(self, life: Life) -> None:
        self._life = life
        self._models = [ModelInfo("plain"), ModelInfo("deadly")]
        if life.number == 1:
            self._models.append(ModelInfo("doomed"))

    def models(self) -> Sequence[ModelInfo]:
        return self._models

    async def aclose(self) -> None:
        pass

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        life = self._life
        await life.check()
        tag = request.system or ""
        # Like the real families: an encoded message is kept and sent again.
        request.native += [encode(message) for message in request.messages[len(request.native) :]]
        messages = tuple([decode_message(native or b"") for native in request.native])
        asked = Asked(len(life.ledger.asked), tag, life.number, life.bases[tag], messages)
        life.ledger.asked.append(asked)
        life.trace.note(f"model: {tag} turn {asked.basis.turn}.{asked.basis.attempt} is request {asked.number}")
        life.witness.model_asked(asked)
        try:
            async for chunks in self._answer(asked, request):
                yield chunks
            asked.ended = "done"
        except ProviderError:
            asked.ended = "failed"
            raise
        finally:
            asked.ended_s = asyncio.get_running_loop().time()
            asked.ended = asked.ended or ("crashed" if life.dead else "aborted")
            life.trace.note(f"model: request {asked.number} {asked.ended}")

    async def _answer(self, asked: Asked, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        life, rng = self._life, self._life.rng
        await life.pass_time(0.5)
        fails_at = rng.randrange(4) if rng.random() < life.manners.errors else -1
        if fails_at == 0:
            raise self._error()
        yield [self._usage(asked, 10), TextDelta(f"{asked.tag}:{asked.number}")]
        for piece in range(rng.randrange(1, 4)):
            try:
                await life.pass_time(0.3)
            except asyncio.CancelledError:
                if life.dead or rng.random() >= life.manners.stubborn:
                    raise
                asked.ended = "aborted"
            if fails_at == piece + 1:
                raise self._error()
            yield [TextDelta(f" w{piece}")]
        await life.pass_time(0.1)
        if request.model == "deadly":
            await asyncio.sleep(0.5)
            life.crash("a model's answer kills the process")
            await asyncio.sleep(3600)
        calls = self._calls(asked, request)
        yield [*calls, self._usage(asked, 20), Finish("tool_use" if calls else "end_turn")]

    def _usage(self, asked: Asked, output: int) -> UsageUpdate:
        """The number of the request is part of the usage, so that the usage can be attributed to it."""
        asked.reported = Usage(input=1000 + asked.number, output=output)
        return UsageUpdate(asked.reported)

    def _error(self) -> ProviderError:
        classes: tuple[ErrorClass, ...] = ("server", "rate_limit", "overloaded", "auth")
        return ProviderError(self._life.rng.choices(classes, (5, 2, 2, 1))[0], "simulated")

    def _calls(self, asked: Asked, request: ModelRequest) -> list[Chunk]:
        rng = self._life.rng
        names = [spec.name for spec in request.tools]
        turns = max(self._life.manners.turns - 2 * asked.tag.count(BELOW), 1)
        if request.tools_disabled or not names or asked.basis.turn >= turns or rng.random() < 0.25:
            return []
        chunks: list[Chunk] = []
        for index in range(rng.choice((1, 1, 2, 3, 5))):
            name = rng.choice(names) if rng.random() < 0.97 else "nobody"
            identity = f"c{index}" if rng.random() < 0.3 else f"c{asked.number}_{index}"
            args = f'{{"n": {rng.randrange(4)}}}' if rng.random() < 0.97 else "not json"
            chunks += [CallStart(index, name, id=identity), CallArgs(index, args), CallDone(index)]
        return chunks
