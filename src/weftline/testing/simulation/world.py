"""The world outside the engine: a model, tools with effects of their own, and a ledger of what they did.

Everything here belongs to one life of the server process. When that ends, whatever of it is still running does nothing
and counts nothing any more, as if its process had gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random

from msgspec import Raw, Struct, field

from weftline.kernel.entries import Effect
from weftline.messages import Assistant, Usage
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
    ToolSpec,
    UsageUpdate,
)
from weftline.providers.catalog import Catalog
from weftline.testing.simulation.trace import Trace
from weftline.tools.arguments import object_args
from weftline.tools.base import ClientKind, Happened, Reconciled, Tool, ToolContext, ToolFailed, ToolOutput

MODEL = "sim:plain"
DOOMED = "sim:doomed"
"""A model that a later deploy no longer has."""
CLIENT_TOOL = "ask"
KILLER = "kill"
BROKEN = "broken"


class Asked(Struct):
    """One request to the model."""

    number: int
    tag: str
    turn: int
    life: int
    reported: Usage | None = None
    ended_s: float = 0.0
    ended: str = ""
    """done, failed, aborted, or crashed; empty while it is under way."""


class Execution(Struct):
    """One execution of a server tool."""

    number: int
    run_id: str
    call_id: str
    tool: str
    effect: Effect
    key: str
    args: bytes
    turn: int
    attempt: int
    life: int
    ended: str = ""


class Wire(Struct):
    """The ways in which a history's model and tools behave."""

    errors: float = 0.0
    slow: float = 0.0
    """How often something takes longer than its time limit."""
    stubborn: float = 0.0
    """How often a tool goes on for a while after it was told to stop."""


class Ledger(Struct):
    """All that the world saw, over all lives."""

    asked: list[Asked] = field(default_factory=list[Asked])
    executions: list[Execution] = field(default_factory=list[Execution])
    happened: dict[str, str] = field(default_factory=dict[str, str])
    """Effects that took place, by idempotency key."""
    fenced: set[str] = field(default_factory=set[str])
    """Keys of which a tool said that they will not happen."""


class Witness:
    """Is told at the moment when something begins; the checks live elsewhere."""

    def model_asked(self, asked: Asked) -> None: ...

    def tool_began(self, execution: Execution, tool: SimTool) -> None: ...


class Life:
    """One life of the server process."""

    def __init__(
        self,
        number: int,
        *,
        rng: Random,
        ledger: Ledger,
        trace: Trace,
        wire: Wire,
        witness: Witness,
        crash: Callable[[str], None],
    ) -> None:
        self.number = number
        self.dead = False
        self.rng = rng
        self.ledger = ledger
        self.trace = trace
        self.wire = wire
        self.witness = witness
        self.crash = crash

    async def check(self) -> None:
        """Never returns when the process has gone."""
        if self.dead:
            await asyncio.get_running_loop().create_future()

    async def pass_time(self, most_s: float) -> None:
        """Some time, seldom too much of it."""
        slow = self.rng.random() < self.wire.slow
        await asyncio.sleep(200.0 if slow else self.rng.random() ** 3 * most_s)
        await self.check()

    def models(self, *, doomed: bool) -> Catalog:
        catalog = Catalog(default_model=MODEL)
        catalog.add(SimModel(self, doomed=doomed))
        return catalog

    def tools(self) -> dict[str, Tool]:
        tools = [
            SimTool(self, "look", "read"),
            SimTool(self, "scan", "read", concurrent=True),
            SimTool(self, "save", "idempotent", concurrent=True),
            SimTool(self, "move", "reconcile"),
            SimTool(self, "shift", "reconcile", concurrent=True),
            SimTool(self, "pay", "once"),
            SimTool(self, "send", "once", concurrent=True),
            SimTool(self, KILLER, "read"),
            SimTool(self, BROKEN, "read"),
        ]
        return {tool.spec.name: tool for tool in tools}


SERVER_TOOLS = ("look", "scan", "save", "move", "shift", "pay", "send")


class SimModel:
    """Asks for some of the tools that it is offered, then answers. Its texts name the run and the request."""

    name = "sim"

    def __init__(self, life: Life, *, doomed: bool) -> None:
        self._life = life
        self._models = [ModelInfo("plain"), *([ModelInfo("doomed")] if doomed else [])]

    def models(self) -> Sequence[ModelInfo]:
        return self._models

    async def aclose(self) -> None:
        pass

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        life = self._life
        await life.check()
        tag = request.system or ""
        said = [one for one in request.messages if isinstance(one, Assistant) and one.text.startswith(f"{tag}:")]
        asked = Asked(len(life.ledger.asked), tag, len(said), life.number)
        life.ledger.asked.append(asked)
        life.trace.note(f"model: {tag} turn {asked.turn} is request {asked.number}")
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
        fails_at = rng.randrange(4) if rng.random() < life.wire.errors else -1
        if fails_at == 0:
            raise self._error()
        yield [self._usage(asked, 10), TextDelta(f"{asked.tag}:{asked.number}")]
        for piece in range(rng.randrange(1, 4)):
            try:
                await life.pass_time(0.3)
            except asyncio.CancelledError:
                if life.dead or rng.random() >= life.wire.stubborn:
                    raise
                asked.ended = "aborted"
            if fails_at == piece + 1:
                raise self._error()
            yield [TextDelta(f" w{piece}")]
        await life.pass_time(0.1)
        calls = self._calls(asked, request)
        yield [*calls, self._usage(asked, 20), Finish("tool_use" if calls else "end_turn")]

    def _usage(self, asked: Asked, output: int) -> UsageUpdate:
        """The number of the request is part of the bill, so that a bill tells whose it is."""
        asked.reported = Usage(input=1000 + asked.number, output=output)
        return UsageUpdate(asked.reported)

    def _error(self) -> ProviderError:
        classes: tuple[ErrorClass, ...] = ("server", "rate_limit", "overloaded", "auth")
        return ProviderError(self._life.rng.choices(classes, (5, 2, 2, 1))[0], "simulated")

    def _calls(self, asked: Asked, request: ModelRequest) -> list[Chunk]:
        rng = self._life.rng
        names = [spec.name for spec in request.tools]
        if request.tools_disabled or not names or asked.turn >= 3 or rng.random() < 0.25:
            return []
        chunks: list[Chunk] = []
        for index in range(rng.choice((1, 1, 2, 3))):
            name = rng.choice(names) if rng.random() < 0.97 else "nobody"
            identity = f"c{index}" if rng.random() < 0.3 else f"c{asked.number}_{index}"
            args = f'{{"n":{rng.randrange(4)}}}' if rng.random() < 0.97 else "not json"
            chunks += [CallStart(index, name, id=identity), CallArgs(index, args), CallDone(index)]
        return chunks


class SimTool:
    client: ClientKind | None = None
    echo: Raw | None = None
    timeout_s: float | None = None

    def __init__(self, life: Life, name: str, effect: Effect, *, concurrent: bool = False) -> None:
        self._life = life
        self.spec = ToolSpec(name, name, Raw(b'{"type":"object","properties":{"n":{"type":"integer"}}}'))
        self.effect: Effect = effect
        self.concurrent = concurrent

    def prepare(self, args: str) -> bytes:
        if self.spec.name == BROKEN:
            raise RuntimeError("simulated: a tool with a bug")
        return object_args(args)[1]

    async def invoke(self, args: bytes, context: ToolContext) -> ToolOutput:
        life, rng = self._life, self._life.rng
        await life.check()
        execution = self._begin(args, context)
        try:
            await life.pass_time(0.6)
            if self.spec.name == KILLER:
                life.crash("a tool kills the process")
                await asyncio.sleep(3600)
            life.ledger.happened[context.idempotency_key] = f"{self.spec.name} {execution.number}"
            await life.pass_time(0.4)
            if rng.random() < 0.1:
                execution.ended = "failed"
                if rng.random() < 0.2:
                    raise asyncio.CancelledError  # of something within the tool, not of the tool
                raise ToolFailed(f"{self.spec.name} {execution.number}")
            execution.ended = "returned"
            return ToolOutput.of(f"{self.spec.name} {execution.number}")
        except asyncio.CancelledError:
            if not life.dead and rng.random() < life.wire.stubborn:
                await asyncio.sleep(1.0)
            raise
        finally:
            execution.ended = execution.ended or ("crashed" if life.dead else "cut")
            life.trace.note(f"tool: execution {execution.number} {execution.ended}")

    async def reconcile(self, args: bytes, context: ToolContext) -> Reconciled:
        life = self._life
        await life.pass_time(0.3)
        result = life.ledger.happened.get(context.idempotency_key)
        if result is not None:
            return Happened(ToolOutput.of(result))
        if life.rng.random() < 0.2:
            return "unknown"
        life.ledger.fenced.add(context.idempotency_key)
        return "will_not_happen"

    def _begin(self, args: bytes, context: ToolContext) -> Execution:
        life = self._life
        execution = Execution(
            len(life.ledger.executions),
            context.run_id,
            context.call_id,
            self.spec.name,
            self.effect,
            context.idempotency_key,
            args,
            context.turn,
            context.attempt,
            life.number,
        )
        life.ledger.executions.append(execution)
        life.trace.note(
            f"tool: {context.metadata.get('tag')} {self.spec.name} {context.call_id} attempt {context.attempt}"
            f" is execution {execution.number}"
        )
        life.witness.tool_began(execution, self)
        return execution
