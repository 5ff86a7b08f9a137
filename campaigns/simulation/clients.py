"""Clients of the simulated server: they create, follow, answer, steer and cancel, and rely on the answers they get.

They live outside the process: a crash breaks their connections and they come back. The answers they got are recorded,
since the promises are about those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from hashlib import blake2b
from random import Random
from typing import Any, TypeVar

from msgspec import Struct, field

from campaigns.simulation.disk import Disk
from campaigns.simulation.followers import Reader, Seen
from campaigns.simulation.holders import Holders
from campaigns.simulation.orders import Order
from campaigns.simulation.people import People
from campaigns.simulation.server import Lost, Server
from campaigns.simulation.trace import Trace, Violation, require
from campaigns.simulation.world import Ledger
from weftline.errors import Conflict, InvalidRequest, NotFound, StoreError, WeftlineError
from weftline.kernel.bodies import encode
from weftline.kernel.entries import CallClosed, CallStarted
from weftline.runtime.engine import Engine
from weftline.store.rows import IdempotencyKey
from weftline.tools.base import ToolOutput

T = TypeVar("T")


class Acknowledged(Struct):
    """What was acknowledged to clients, which must stay true."""

    created: dict[str, str] = field(default_factory=dict[str, str])
    """Run ids by tag."""
    answered: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])
    """Texts of accepted answers by run and call."""
    steered: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])
    not_steered: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Texts of messages that were rejected."""
    cancelled: set[int] = field(default_factory=set[int])
    """Runs whose cancel was acknowledged with status `cancelled`."""
    paused: list[int] = field(default_factory=list[int])
    resumed: list[int] = field(default_factory=list[int])


class Clients:
    def __init__(
        self, server: Server, disk: Disk, ledger: Ledger, *, rng: Random, people: Random, trace: Trace
    ) -> None:
        self.people = People(server, disk, ledger, insist=self.insist, rng=people, trace=trace)
        self.holders = Holders(server, disk, plainly=self._answer_once, insist=self.insist, rng=people, trace=trace)
        self._server = server
        self._disk = disk
        self._rng = rng
        self._trace = trace
        self.acknowledged = Acknowledged()
        self.seen: list[Seen] = []

    async def carry_out(self, order: Order) -> None:
        """One run from creation to end, with everything that its client does in between."""
        await self._wait(2.0)
        if self._rng.random() < 0.05:
            await self._create_and_forget(order)
            return
        run_id = await self._create(order)
        if run_id is None:
            return  # its model no longer exists
        key = self._disk.locate(run_id)
        readers = [self._server.outside(self._read(order, key, run_id)) for _ in range(self._rng.choice((1, 1, 2)))]
        meddling = [self._server.outside(one) for one in self._meddle(key)]
        await asyncio.gather(*readers)
        for task in meddling:
            await task
        if order.run_id is not None:
            await self._start_again(order)

    async def _create_and_forget(self, order: Order) -> None:
        """Sends a request, loses the connection, and never comes back: the run exists completely or not at all."""
        try:
            await self._server.request(lambda engine: self._ask_create(engine, order), patience_s=self._moment())
        except (Lost, WeftlineError):
            pass

    async def _create(self, order: Order) -> str | None:
        """Repeats the request until there is an answer, always with the same key."""
        try:
            run_id = await (self._insist_on(order) if order.run_id is None else self._race(order))
        except InvalidRequest as error:
            require("C1", error.code == "invalid_model", f"{order.tag}: a create was answered with {error.code}")
            return None
        except WeftlineError as error:
            raise Violation("C1", f"{order.tag}: a create was answered with {error.code}: {error}") from error
        self._trace.note(f"client: {order.tag} is {self._disk.locate(run_id)}")
        require(
            "C1", self._disk.row(self._disk.locate(run_id)) is not None, f"{order.tag} was created and is not there"
        )
        require("C1", self.acknowledged.created.setdefault(order.tag, run_id) == run_id, f"{order.tag} has two ids")
        return run_id

    async def _insist_on(self, order: Order, *, rival: str = "") -> str:
        return await self.insist(lambda engine: self._ask_create(engine, order, rival=rival), impatient=0.3)

    async def _race(self, order: Order) -> str:
        """Two clients create a run with the same id: one gets it, whatever happens in between, and the other gets a
        conflict.
        """
        asking = [self._server.outside(self._insist_on(order, rival=rival)) for rival in ("", " rival")]
        await asyncio.wait(asking)
        failures = [one.exception() for one in asking]
        if all(isinstance(failure, InvalidRequest) for failure in failures):
            await asking[0]
        codes = sorted([failure.code if isinstance(failure, WeftlineError) else "" for failure in failures])
        require("C1", codes == ["", "run_exists"], f"{order.tag}: creates of one id were answered with {failures}")
        (run_id,) = [one.result() for one in asking if one.exception() is None]
        require("C1", run_id == order.run_id, f"{order.tag}: {run_id} was created in place of {order.run_id}")
        return run_id

    async def _start_again(self, order: Order) -> None:
        try:
            run_id = await self._insist_on(order, rival=" late")
        except Conflict as error:
            require("C1", error.code == "run_exists", f"{order.tag}: a second start was refused as {error.code}")
        else:
            raise Violation("C1", f"{order.tag} was started a second time: {run_id}")

    def _ask_create(self, engine: Engine, order: Order, *, rival: str = "") -> Awaitable[str]:
        plan = order.plan
        key = f"{order.tag}{rival}"
        idempotency = IdempotencyKey("runs", key, blake2b(encode(plan), digest_size=16).digest())
        return engine.create(
            self._disk.workspace, plan, thread=order.thread, idempotency=idempotency, run_id=order.run_id
        )

    async def _read(self, order: Order, key: int, run_id: str) -> None:
        seen = Seen(key)
        self.seen.append(seen)
        answering: list[asyncio.Task[None]] = []

        def offered(call: str) -> None:
            if order.answers:
                answer = self.holders.answer if order.claims else self._answer
                answering.append(self._server.outside(answer(key, call)))

        def asked(id: str) -> None:
            answering.append(self._server.outside(self.people.asked(key, id)))

        def begun(child: str) -> None:
            answering.append(self._server.outside(self._look_below(order, key, child)))

        reader = Reader(self._server, self._disk, seen, rng=self._rng, on_offer=offered, on_await=asked, on_child=begun)
        await reader.follow(run_id)
        for task in answering:
            await task

    async def _look_below(self, order: Order, key: int, child: str) -> None:
        """A follower of a run sees that a run below it has begun."""
        doing: list[Coroutine[Any, Any, None]] = []
        if self._rng.random() < 0.7:
            doing.append(self._read(order, self._disk.locate(child), child))
        if self._rng.random() < 0.3:
            doing.append(self.people.look_below(key))
        if self._rng.random() < 0.1:
            doing.append(self._rng.choice((self._cancel, self._pause))(self._disk.locate(child)))
        if self._rng.random() < 0.06:
            doing.append(self._cancel(key))
        await asyncio.gather(*[self._server.outside(one) for one in doing])

    # Answering

    async def _answer(self, key: int, call: str) -> None:
        if self._rng.random() < 0.7:  # else at once: simultaneous answers are where the races are
            await self._wait(2.0 if self._rng.random() < 0.9 else 40.0)
        times = 2 if self._rng.random() < 0.2 else 1
        answers = [self._answer_once(key, call, f"answer {self._rng.random()}") for _ in range(times)]
        await asyncio.gather(*(self._server.outside(answer) for answer in answers))

    async def _answer_once(self, key: int, call: str, text: str, token: str = "") -> None:
        try:
            accepted = await self.insist(lambda engine: engine.answer(key, call, ToolOutput.of(text), token=token))
        except (NotFound, Conflict) as error:
            if error.code in ("lease_held", "lease_lost"):
                require("L1", self.holders.was_claimed(key, call), f"run {key}: {error.code} of {call}, never claimed")
                return
            closed = call in self._closed(key) or self._disk.has_ended(key) or self.holders.fell_back(key, call)
            require("C1", closed, f"run {key}: told that {call} is closed ({error.code}) before that was durable")
            return
        if accepted:
            self._trace.note(f"client: answer to {key} {call} accepted")
            before = self.acknowledged.answered.setdefault((key, call), text)
            require("C1", before == text, f"run {key}: two answers to {call} were accepted")
            require("C1", call in self._closed(key), f"run {key}: answer to {call} accepted and not durable")

    def _closed(self, key: int) -> set[str]:
        return {entry.head.id for entry in self._disk.facts(key) if isinstance(entry.head, CallClosed)}

    def _closed_below(self, key: int, run: str = "") -> list[tuple[str, str]]:
        """The closed calls of a run and of those below it, each with its run."""
        children = [entry.head.child for entry in self._disk.facts(key) if isinstance(entry.head, CallStarted)]
        found = [(run, call) for call in self._closed(key)]
        return found + [
            one for child in children if child for one in self._closed_below(self._disk.locate(child), child)
        ]

    # Meddling

    def _meddle(self, key: int) -> list[Coroutine[Any, Any, None]]:
        rng = self._rng
        doing: list[Coroutine[Any, Any, None]] = []
        if rng.random() < 0.2:
            doing.append(self._cancel(key))
        doing += [self._pause(key) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
        doing += [self._steer(key, number) for number in range(rng.choice((0, 0, 1, 3)))]
        return doing

    async def _cancel(self, key: int) -> None:
        await self._wait(4.0 if self._rng.random() < 0.8 else 20.0)
        receipt = await self.insist(lambda engine: engine.cancel(key))
        self._trace.note(f"client: cancel of {key} acknowledged: {receipt.status}")
        require("C1", self._disk.has_ended(key), f"run {key}: cancel acknowledged and the run has not ended")
        listed = [(call.run, call.id) for call in (*receipt.stopped, *receipt.finished, *receipt.in_doubt)]
        require("C1", sorted(listed) == sorted(self._closed_below(key)), f"run {key}: a cancel receipt of {listed}")
        if receipt.status == "cancelled":
            self.acknowledged.cancelled.add(key)

    async def _pause(self, key: int) -> None:
        await self._wait(3.0 if self._rng.random() < 0.7 else 30.0)
        if not await self._control(lambda engine: engine.pause(key)):
            return
        self._trace.note(f"client: pause of {key} acknowledged")
        self.acknowledged.paused.append(key)
        await self._wait(5.0 if self._rng.random() < 0.6 else 60.0)
        if await self._control(lambda engine: engine.resume(key)):
            self._trace.note(f"client: resume of {key} acknowledged")
            self.acknowledged.resumed.append(key)

    async def _control(self, ask: Callable[[Engine], Awaitable[None]]) -> bool:
        try:
            await self.insist(ask)
        except Conflict:
            return False
        return True

    async def _steer(self, key: int, number: int) -> None:
        await self._wait(3.0 if self._rng.random() < 0.8 else 20.0)
        text = f"steer {number} of {key}"
        follow_up = self._rng.random() < 0.3

        async def ask(engine: Engine) -> str:
            return await (engine.follow_up(key, text) if follow_up else engine.steer(key, text))

        try:
            identity = await self._server.request(ask, patience_s=self._moment() if self._rng.random() < 0.1 else None)
        except Lost:
            return
        except WeftlineError:
            self.acknowledged.not_steered.append((key, text))
            return
        self._trace.note(f"client: message {identity} to {key} acknowledged")
        self.acknowledged.steered[key, identity] = text

    async def insist(self, ask: Callable[[Engine], Awaitable[T]], *, impatient: float = 0.15) -> T:
        """Repeats a request until there is an answer, or an error that repeating it will not change."""
        patience_s = self._moment() if self._rng.random() < impatient else None
        while True:
            try:
                return await self._server.request(ask, patience_s=patience_s)
            except Lost:
                pass
            except WeftlineError as error:
                if not error.retryable and not isinstance(error, StoreError):
                    raise
            patience_s = None
            await self._wait(1.0)

    def _moment(self) -> float:
        return self._rng.choice((0.0, 0.001, 0.01, 0.03)) * self._rng.random()

    async def _wait(self, max_s: float) -> None:
        await asyncio.sleep(self._rng.random() ** 2 * max_s)
