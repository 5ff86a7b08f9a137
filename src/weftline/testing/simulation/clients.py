"""Clients of the simulated server: they create, follow, answer, steer and cancel, and believe what they are told.

They live outside the process: a crash breaks their connections and they come back. What they were told is kept, since
that is what the promises are about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from hashlib import blake2b
from random import Random
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.json import decode, encode

from weftline.errors import Conflict, NotFound, Unavailable, WeftlineError
from weftline.runtime import ids
from weftline.runtime.embedded import Engine
from weftline.store.sqlite.reads import Reader
from weftline.testing.simulation.server import Lost, Server
from weftline.testing.simulation.trace import Trace, Violation, require
from weftline.testing.simulation.world import CLIENT_TOOL, MODEL
from weftline.tools.base import ToolOutput
from weftline.wire.events import TERMINAL_EVENTS
from weftline.wire.plan import plan_from_spec

T = TypeVar("T")


class Order(Struct):
    """A run that a client is going to ask for."""

    tag: str
    thread: int | None = None
    model: str = MODEL
    tools: tuple[str, ...] = ()
    client_tool: bool = False
    timeout_ms: int = 300_000
    on_timeout: str = "end"
    answers: bool = True
    """Whether somebody answers its client calls."""
    poison: str = ""

    @property
    def spec(self) -> bytes:
        tools: list[dict[str, str]] = [{"kind": "mantyx_plugin", "name": name} for name in self.tools]
        if self.client_tool:
            tools.append({"kind": "local", "name": CLIENT_TOOL})
        return encode(
            {
                "name": self.tag,
                "modelId": self.model,
                "systemPrompt": self.tag,
                "prompt": f"prompt of {self.tag}",
                "tools": tools,
                "metadata": {"tag": self.tag},
                "budgets": {"localToolTimeoutMs": self.timeout_ms, "onLocalToolTimeout": self.on_timeout},
            }
        )


class Told(Struct):
    """What clients were told, which must stay true."""

    created: dict[str, str] = field(default_factory=dict[str, str])
    """Run ids by tag."""
    answered: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])
    """Texts of accepted answers by run and call."""
    steered: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])
    cancelled: set[int] = field(default_factory=set[int])
    """Runs whose cancel was acknowledged with status `cancelled`."""
    paused: list[int] = field(default_factory=list[int])
    resumed: list[int] = field(default_factory=list[int])


class Seen(Struct):
    """One subscriber's view of one run: frames by seq, over all its connections."""

    run: int
    frames: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    last_seq: int = 0
    ended: bool = False


class _Offered(Struct):
    toolUseId: str


class Clients:
    def __init__(self, server: Server, read: Reader, *, workspace: int, rng: Random, trace: Trace) -> None:
        self._server = server
        self._read = read
        self._workspace = workspace
        self._rng = rng
        self._trace = trace
        self.told = Told()
        self.seen: list[Seen] = []
        self.jitter_s = 1.0

    async def carry_out(self, order: Order) -> None:
        """One run from its create to its end, with everything that its client does meanwhile."""
        await self._wait(2.0)
        if self._rng.random() < 0.05:
            await self._create_and_forget(order)
            return
        run_id = await self._create(order)
        if run_id is None:
            return  # its model is no longer there
        key = self._key(run_id)
        followers = [self._server.outside(self._follow(order, key, run_id)) for _ in range(self._rng.choice((1, 1, 2)))]
        # Nobody meddles with a poison run: a client that wakes it again and again keeps it out of its recovery.
        meddling = [self._server.outside(one) for one in ([] if order.poison else self._meddle(key))]
        await asyncio.gather(*followers)
        for task in meddling:
            await task

    async def _create_and_forget(self, order: Order) -> None:
        """Asks, loses the connection, and never comes back: the run is there whole, or not at all."""
        try:
            await self._server.request(lambda engine: self._ask_create(engine, order), patience_s=self._moment())
        except (Lost, WeftlineError):
            pass

    async def _create(self, order: Order) -> str | None:
        """Asks until there is an answer, always with the same key."""
        impatient = self._rng.random() < 0.3
        while True:
            patience_s = self._moment() if impatient else None
            impatient = False
            try:
                run_id = await self._server.request(
                    lambda engine: self._ask_create(engine, order), patience_s=patience_s
                )
            except (Lost, Unavailable):
                await self._wait(1.0)
                continue
            except WeftlineError as error:
                if error.code == "invalid_model":
                    return None
                raise Violation("C1", f"{order.tag}: a create was answered with {error.code}: {error}") from error
            self._trace.note(f"client: {order.tag} is {self._key(run_id)}")
            row = self._read.run(self._key(run_id))
            require("C1", row is not None, f"{order.tag} was created and is not there")
            require("C1", self.told.created.setdefault(order.tag, run_id) == run_id, f"{order.tag} has two ids")
            return run_id

    def _ask_create(self, engine: Engine, order: Order) -> Awaitable[str]:
        body = order.spec
        idempotency = ("runs", order.tag, blake2b(body, digest_size=16).digest())
        plan = plan_from_spec(body)
        return engine.create(self._workspace, plan, sent=body, thread=order.thread, idempotency=idempotency)

    # Following

    async def _follow(self, order: Order, key: int, run_id: str) -> None:
        seen = Seen(key)
        self.seen.append(seen)
        answering: list[asyncio.Task[None]] = []
        slow = self._rng.random() < 0.3
        while not seen.ended:
            engine, life = await self._server.up()
            subscription = engine.follow(key, run_id, after=seen.last_seq)
            stays_s = self._rng.random() * 3 if self._rng.random() < 0.3 else 1e9
            leaves_at = asyncio.get_running_loop().time() + stays_s
            while not seen.ended and not life.dead and asyncio.get_running_loop().time() < leaves_at:
                data = subscription.take()
                if data is None:
                    break
                offers = self._read_frames(seen, data)
                if order.answers:
                    answering += [self._server.outside(self._answer(key, offer)) for offer in offers]
                if slow:
                    await self._wait(0.5)
                elif not data:
                    waiting = asyncio.get_running_loop().create_task(subscription.wait())
                    await asyncio.wait([waiting], timeout=max(leaves_at - asyncio.get_running_loop().time(), 0.001))
                    waiting.cancel()
            subscription.close()
            await self._wait(0.05)
        for task in answering:
            await task

    def _read_frames(self, seen: Seen, data: bytes) -> list[str]:
        """Takes frames in; returns the client calls that they offer."""
        offered: list[str] = []
        for text in data.split(b"\n\n"):
            if not text or text.startswith(b":"):
                continue
            head, event, body = text.split(b"\n", 2)
            seq, name = int(head.removeprefix(b"id: ")), event.removeprefix(b"event: ").decode()
            require("S9", seq > seen.last_seq, f"run {seen.run}: seq {seq} came after {seen.last_seq}")
            require("C5", not seen.ended, f"run {seen.run}: seq {seq} came after the end")
            row = self._read.run(seen.run)
            require("C2", row is not None and row.next_seq > seq, f"run {seen.run}: seq {seq} was seen before durable")
            seen.frames.append((seq, text + b"\n\n"))
            seen.last_seq = seq
            seen.ended = name in TERMINAL_EVENTS
            if name == "local_tool_call":
                offered.append(decode(body.removeprefix(b"data: "), type=_Offered).toolUseId)
        return offered

    # Answering

    async def _answer(self, key: int, call: str) -> None:
        await self._wait(2.0 if self._rng.random() < 0.9 else 40.0)
        times = 2 if self._rng.random() < 0.2 else 1
        answers = [self._answer_once(key, call, f"answer {self._rng.random()}") for _ in range(times)]
        await asyncio.gather(*(self._server.outside(answer) for answer in answers))

    async def _answer_once(self, key: int, call: str, text: str) -> None:
        impatient = self._rng.random() < 0.15
        while True:
            patience_s = self._moment() if impatient else None
            impatient = False
            try:
                accepted = await self._server.request(
                    lambda engine: engine.answer(key, call, ToolOutput.of(text)), patience_s=patience_s
                )
            except (Lost, Unavailable):
                await self._wait(1.0)
                continue
            except (NotFound, Conflict) as error:
                closed = call in self._closed(key) or self._row_ended(key)
                require("C1", closed, f"run {key}: told that {call} is closed ({error.code}) before that was durable")
                return
            if accepted:
                self._trace.note(f"client: answer to {key} {call} accepted")
                before = self.told.answered.setdefault((key, call), text)
                require("C1", before == text, f"run {key}: two answers to {call} were accepted")
                require("C1", call in self._closed(key), f"run {key}: answer to {call} accepted and not durable")
            return

    def _closed(self, key: int) -> set[str]:
        rows = self._read.of_kinds(key, ("call.closed",))
        return {decode(row[3])["id"] for row in rows}

    def _row_ended(self, key: int) -> bool:
        row = self._read.run(key)
        return row is None or row.ended_at is not None

    # Meddling

    def _meddle(self, key: int) -> list[Coroutine[Any, Any, None]]:
        rng = self._rng
        doing: list[Coroutine[Any, Any, None]] = []
        if rng.random() < 0.2:
            doing.append(self._cancel(key))
        if rng.random() < 0.3:
            doing.append(self._pause(key))
        doing += [self._steer(key, number) for number in range(rng.choice((0, 0, 1, 3)))]
        return doing

    async def _cancel(self, key: int) -> None:
        await self._wait(4.0)
        receipt = await self._insist(lambda engine: engine.cancel(key))
        if receipt is not None:
            self._trace.note(f"client: cancel of {key} acknowledged: {receipt.status}")
            require("C1", self._row_ended(key), f"run {key}: cancel acknowledged and the run has not ended")
            if receipt.status == "cancelled":
                self.told.cancelled.add(key)

    async def _pause(self, key: int) -> None:
        await self._wait(3.0)
        if await self._insist(lambda engine: _done(engine.pause(key))) is None:
            return
        self.told.paused.append(key)
        await self._wait(5.0)
        if await self._insist(lambda engine: _done(engine.resume(key))) is not None:
            self.told.resumed.append(key)

    async def _steer(self, key: int, number: int) -> None:
        await self._wait(3.0)
        text = f"steer {number} of {key}"
        follow_up = self._rng.random() < 0.3

        async def ask(engine: Engine) -> str:
            return await (engine.follow_up(key, text) if follow_up else engine.steer(key, text))

        try:
            identity = await self._server.request(ask, patience_s=self._moment() if self._rng.random() < 0.1 else None)
        except (Lost, WeftlineError):
            return
        self._trace.note(f"client: message {identity} to {key} acknowledged")
        self.told.steered[key, identity] = text

    async def _insist(self, ask: Callable[[Engine], Awaitable[T]]) -> T | None:
        """Asks until there is an answer; None when that is a refusal."""
        impatient = self._rng.random() < 0.15
        while True:
            patience_s = self._moment() if impatient else None
            impatient = False
            try:
                return await self._server.request(ask, patience_s=patience_s)
            except (Lost, Unavailable):
                await self._wait(1.0)
            except Conflict:
                return None

    def _moment(self) -> float:
        return self._rng.choice((0.0, 0.001, 0.01, 0.03)) * self._rng.random()

    async def _wait(self, most_s: float) -> None:
        await asyncio.sleep(self._rng.random() ** 2 * most_s * self.jitter_s)

    def _key(self, run_id: str) -> int:
        parsed = ids.parse(run_id, prefix="run_")
        assert parsed is not None
        return parsed[0]


async def _done(asked: Awaitable[None]) -> bool:
    await asked
    return True
