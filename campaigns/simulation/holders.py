"""Clients of the simulated server that claim calls: they race for them, keep them, lose them and vanish."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol, TypeVar

from campaigns.simulation.disk import Disk
from campaigns.simulation.people import Insist
from campaigns.simulation.server import Server
from campaigns.simulation.trace import Trace, require
from weftline.errors import Conflict, NotFound
from weftline.kernel.control import CallClaimed, CallUnclaimed
from weftline.runtime.engine import Engine

T = TypeVar("T")

LEASES_S = (0.3, 2.0, 2.0, 30.0)


class AnswerOnce(Protocol):
    def __call__(self, key: int, call: str, text: str, token: str = "") -> Awaitable[None]: ...


class Holders:
    """`plainly` sends one result, with or without the token of a lease, and checks the response."""

    def __init__(
        self, server: Server, disk: Disk, *, plainly: AnswerOnce, insist: Insist, rng: Random, trace: Trace
    ) -> None:
        self._server = server
        self._disk = disk
        self._plainly = plainly
        self._insist = insist
        self._rng = rng
        self._trace = trace

    def was_claimed(self, key: int, call: str) -> bool:
        """Whether the log has a claim of it."""
        return any(isinstance(one.head, CallClaimed) and one.head.id == call for one in self._disk.facts(key))

    def fell_back(self, key: int, call: str) -> bool:
        """Whether the server executes it."""
        given = [one.head for one in self._disk.facts(key) if isinstance(one.head, CallUnclaimed)]
        return any(head.id == call and head.fallback for head in given)

    async def answer(self, key: int, call: str) -> None:
        """Some clients that were offered a call, at about the same time."""
        clients = [self._server.outside(self._client(key, call)) for _ in range(self._rng.choice((1, 1, 2, 3)))]
        for client in clients:
            await client

    async def _client(self, key: int, call: str) -> None:
        rng = self._rng
        await self._wait(0.5)
        if rng.random() < 0.15:
            await self._plainly(key, call, f"answer {rng.random()}")
            return
        name, lease_us = f"client {rng.random()}", int(rng.choice(LEASES_S) * 1_000_000)
        leased = await self._ask(key, call, lambda engine: engine.claim(key, call, lease_us=lease_us, claim_id=name))
        if leased is None:
            return
        token = leased.token
        self._trace.note(f"client: {call} of {key} is claimed by {name}")
        for _ in range(rng.choice((0, 0, 1, 3))):
            await asyncio.sleep(rng.random() * 1.2 * lease_us / 1_000_000)
            if await self._ask(key, call, lambda engine: engine.heartbeat(key, call, token)) is None:
                return
        match rng.choice(("answer", "answer", "answer", "slowly", "release", "vanish")):
            case "release":
                await self._ask(key, call, lambda engine: engine.release(key, call, token))
            case "vanish":
                pass
            case "slowly":
                await asyncio.sleep(rng.random() * 3 * lease_us / 1_000_000)
                await self._plainly(key, call, f"answer {rng.random()}", token)
            case _:
                await self._wait(0.2)
                await self._plainly(key, call, f"answer {rng.random()}", token)

    async def _ask(self, key: int, call: str, ask: Callable[[Engine], Awaitable[T]]) -> T | None:
        """None if the call belongs to another client, or is closed."""
        try:
            return await self._insist(ask)
        except (NotFound, Conflict) as error:
            if error.code in ("lease_held", "lease_lost"):
                require("L1", self.was_claimed(key, call), f"run {key}: {error.code} of {call}, which nobody claimed")
            return None

    async def _wait(self, max_s: float) -> None:
        await asyncio.sleep(self._rng.random() ** 2 * max_s)
