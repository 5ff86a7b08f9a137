"""People who are asked by the simulated runs: they answer late, twice, wrongly, concurrently and through other runs.

For a call in doubt they know the truth, which makes it safe to ask them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Protocol

from msgspec import Struct, field

from campaigns.simulation.disk import Disk
from campaigns.simulation.server import Server
from campaigns.simulation.trace import Trace, require
from campaigns.simulation.world import Ledger
from weftline.errors import WeftlineError
from weftline.kernel.bodies import Pattern, decode_await
from weftline.kernel.entries import AwaitClosed, CancelRequested
from weftline.runtime import ids
from weftline.runtime.engine import Engine
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.store.rows import AwaitFilter, OpenAwait

LOOKS_EVERY_S = 40.0
TOO_LATE = frozenset({"await_closed", "await_expired", "run_terminal"})


class Insist(Protocol):
    async def __call__(self, ask: Callable[[Engine], Awaitable[Any]], *, impatient: float = 0.15) -> Any: ...


class Decided(Struct):
    """The outcomes reported to people, which must stay true."""

    answers: dict[tuple[int, str], tuple[str, str]] = field(default_factory=dict[tuple[int, str], tuple[str, str]])
    """How an await was closed and by whom, by run and await."""


class People:
    def __init__(
        self, server: Server, disk: Disk, ledger: Ledger, *, insist: Insist, rng: Random, trace: Trace
    ) -> None:
        self._server = server
        self._disk = disk
        self._ledger = ledger
        self._insist = insist
        self._rng = rng
        self._trace = trace
        self.decided = Decided()

    async def answer_open_awaits(self) -> None:
        """A person who follows no particular run, and answers whatever is open."""
        wanted = AwaitFilter(workspace=self._disk.workspace, limit=100)
        while True:
            await asyncio.sleep(self._rng.random() * LOOKS_EVERY_S)
            found: list[OpenAwait] = await self._insist(lambda engine: engine.stored.awaits(wanted))
            for one in found:
                await self.answer(one)

    async def asked(self, key: int, id: str) -> None:
        """A person who follows the run sees the question."""
        await asyncio.sleep(self._rng.random() ** 2 * self._rng.choice((0.0, 2.0, 2.0, 90.0)))
        wanted = AwaitFilter(workspace=self._disk.workspace, run=key, limit=100)
        found: list[OpenAwait] = await self._insist(lambda engine: engine.stored.awaits(wanted))
        for one in found:
            if one.id == id:
                await self.answer(one)

    async def look_below(self, key: int) -> None:
        """A person who follows the run sees the questions of the runs below it."""
        await asyncio.sleep(self._rng.random() ** 2 * 10.0)
        wanted = AwaitFilter(workspace=self._disk.workspace, root=key, limit=100)
        found: list[OpenAwait] = await self._insist(lambda engine: engine.stored.awaits(wanted))
        for one in found:
            await self.answer(one)

    async def answer(self, one: OpenAwait) -> None:
        rng = self._rng
        if rng.random() < 0.2:
            await self._send_answer(one, AwaitAnswer(outcome="approved"), id="await_99_0_1", wrong=True)
        if rng.random() < 0.2:
            other = "answered" if one.kind == "confirm" else "approved"
            if one.kind != "doubt":
                await self._send_answer(
                    one, AwaitAnswer(outcome=other, value="x" if other == "answered" else None), wrong=True
                )
        answers = [self._next_answer(one) for _ in range(rng.choice((1, 1, 1, 2)))]
        tasks = [self._server.outside(self._send_answer(one, answer)) for answer in answers]
        for task in tasks:
            await task
        if rng.random() < 0.3:
            await self._send_answer(one, answers[0])  # once more: the same is accepted, if it was the first time

    def _next_answer(self, one: OpenAwait) -> AwaitAnswer:
        rng, body = self._rng, decode_await(one.body)
        if one.kind == "doubt":
            return self._truth(one, body.call)
        if rng.random() < 0.2:
            return AwaitAnswer(outcome="denied", reason="no")
        if one.kind in ("question", "clarification"):
            return AwaitAnswer(outcome="answered", value=f"answer {rng.random()}")
        kind = rng.random()
        if kind < 0.2:
            return AwaitAnswer(outcome="approved", args={"n": 7})
        return AwaitAnswer(outcome="approved", remember=Pattern(body.name) if kind < 0.3 else None)

    def _truth(self, one: OpenAwait, call: str) -> AwaitAnswer:
        run_id = ids.run_id(one.run, one.salt)
        keys = [e.key for e in self._ledger.executions if (e.run_id, e.call_id) == (run_id, call)]
        result = next((self._ledger.happened[key] for key in reversed(keys) if key in self._ledger.happened), None)
        return AwaitAnswer(outcome="approved") if result is None else AwaitAnswer(outcome="answered", value=result)

    async def _send_answer(self, one: OpenAwait, answer: AwaitAnswer, *, id: str = "", wrong: bool = False) -> None:
        key, id = one.run, id or one.id
        by = f"user:{self._rng.randrange(1000)}"
        try:
            outcome = await self._insist(lambda engine: engine.answer_await(key, id, answer, by=by, person_of=as_named))
        except WeftlineError as error:
            known = {"unknown_await", "invalid_answer"} if wrong else frozenset[str]()
            require("A1", error.code in TOO_LATE | known, f"run {key}: {id} was refused with {error.code}: {error}")
            if error.code in TOO_LATE:
                # A cancelled run accepts no answers, and closes its awaits when its work has stopped.
                closed = id in self._closed(key) or self._disk.has_ended(key) or self._is_cancelled(key)
                require("C1", closed, f"run {key}: told that {id} is closed before that was durable")
            return
        require("A1", not wrong, f"run {key}: {id} was answered with what does not fit")
        self._trace.note(f"person: {id} of {key} is {outcome}")
        require("C1", id in self._closed(key), f"run {key}: an answer to {id} was accepted and is not durable")
        before = self.decided.answers.setdefault((key, id), (outcome, by))
        require("A1", before[0] == outcome, f"run {key}: {id} was {before[0]} and then {outcome}")

    def _is_cancelled(self, key: int) -> bool:
        return any(isinstance(entry.head, CancelRequested) for entry in self._disk.facts(key))

    def _closed(self, key: int) -> set[str]:
        return {entry.head.id for entry in self._disk.facts(key) if isinstance(entry.head, AwaitClosed)}
