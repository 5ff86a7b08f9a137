"""Large bodies are parsed one at a time, and workspaces take turns."""

from __future__ import annotations

import asyncio
import threading

from weftline.work.heavy import in_turn
from weftline.work.turns import on_behalf_of


class Work:
    """Counts how much is done at once, and remembers for whom."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    async def ask(self, workspace: int) -> None:
        on_behalf_of.set(workspace)
        await in_turn(self._do, workspace)

    def _do(self, workspace: int) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            self.order.append(workspace)
        with self._lock:
            self._now -= 1


async def test_flood_of_large_bodies_delays_another_by_one() -> None:
    work = Work()
    flood = [asyncio.create_task(work.ask(1)) for _ in range(20)]
    await asyncio.sleep(0)
    other = asyncio.create_task(work.ask(2))
    await asyncio.gather(*flood, other)
    assert work.order.index(2) <= 2
    assert work.most == 1


async def test_failed_work_gives_its_turn_back() -> None:
    for _ in range(3):
        try:
            await in_turn(int, "x")
        except ValueError:
            continue
        raise AssertionError
    assert await in_turn(int, "3") == 3
