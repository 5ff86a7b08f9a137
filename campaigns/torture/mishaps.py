"""What is done to the server. The seed decides what and in what order; exactly when is up to the machine."""

from __future__ import annotations

import asyncio
import itertools
import time
from random import Random
from typing import Literal, TypeAlias

from campaigns.torture.clients import Clients
from campaigns.torture.host import Host
from campaigns.torture.ledger import Ledger

Kind: TypeAlias = Literal[
    "kill",
    "kill twice",
    "kill at start",
    "storm of kills",
    "freeze",
    "stop",
    "stop in a hurry",
    "second server",
    "full disk",
    "stuck readers",
]
_COUNTS: dict[Kind, int] = {
    "kill": 6,
    "kill twice": 2,
    "kill at start": 2,
    "storm of kills": 1,
    "freeze": 2,
    "stop": 2,
    "full disk": 2,
    "stop in a hurry": 1,
    "second server": 1,
    "stuck readers": 1,
}
_FIRST: tuple[Kind, ...] = ("kill", "full disk", "kill", "second server", "freeze", "stop")
"""Ensures that a short torture includes the most important mishaps."""


class Mishaps:
    def __init__(self, host: Host, clients: Clients, ledger: Ledger, *, seed: int) -> None:
        self._host = host
        self._clients = clients
        self._ledger = ledger
        self._random = Random(f"{seed}/mishaps")
        self._deck: list[Kind] = list(reversed(_FIRST))

    async def go_on(self, *, until_s: float, at_least: int) -> None:
        """Causes one mishap after another until `time.monotonic()` is `until_s`; the server is running when this
        returns.
        """
        for count in itertools.count():
            pause_s = self._random.choice((0.3, 1.0, 1.0, 2.0, 4.0)) if count >= len(_FIRST) else 0.7
            over = time.monotonic() + pause_s > until_s
            if over and count >= at_least:
                return
            if await self._host.died_within(pause_s):
                await self._revive()
            kind = self._next()
            self._ledger.mishaps[kind] = self._ledger.mishaps.get(kind, 0) + 1
            await self._happen(kind)

    def _next(self) -> Kind:
        if not self._deck:
            self._deck = [kind for kind, count in _COUNTS.items() for _ in range(count)]
            self._random.shuffle(self._deck)
        return self._deck.pop()

    async def _happen(self, kind: Kind) -> None:
        random, host = self._random, self._host
        match kind:
            case "kill":
                await host.kill()
            case "kill twice":
                await host.kill()
                await self._revive()
                await asyncio.sleep(random.uniform(0.0, 0.8))
                await host.kill()
            case "storm of kills":
                for _ in range(6):
                    await host.kill()
                    await self._revive()
                    await asyncio.sleep(random.uniform(0.2, 1.5))
                await host.kill()
            case "kill at start":
                await host.kill()
                starting = asyncio.create_task(host.start())
                await asyncio.sleep(random.uniform(0.2, 1.2))
                await host.kill()
                if await starting:  # the kill came before there was a process
                    await host.kill()
            case "freeze":
                host.freeze()
                await asyncio.sleep(random.choice((0.2, 1.0, 4.0)))
                host.thaw()
            case "stop":
                await host.stop()
            case "stop in a hurry":
                await host.stop(twice=True)
            case "second server":
                await host.second()
            case "full disk":
                await self._fill()
            case "stuck readers":
                await self._clients.get_stuck(random.randint(5, 40))
        if not host.running and self._ledger.life.how != "alive":
            await self._revive()

    async def _fill(self) -> None:
        random, host = self._random, self._host
        killed = random.random() < 0.3
        hold_s = random.choice((0.3, 1.0, 3.0))
        self._ledger.life.full += 1
        host.volume.fill(host.process.pid)
        try:
            died = await host.died_within(hold_s)
            if killed and not died:
                await host.kill()
        finally:
            host.volume.release()

    async def _revive(self) -> None:
        for _ in range(5):
            if await self._host.start():
                return
        raise RuntimeError("the server no longer starts")
