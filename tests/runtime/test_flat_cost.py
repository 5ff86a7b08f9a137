"""What a turn writes and reads does not depend on how many came before it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.server import WallClock
from msgspec.structs import replace

from runtime.kit import MoodyLog, MoodyStore, engine_on, plan, until
from weftline.plan import ServerRef
from weftline.store.memory import MemoryDisk
from weftline.store.memory.store import MemoryLog
from weftline.store.rows import Write, Written
from weftline.tools.decorator import tool

TURNS = 1_000
SCRIPTS: dict[str, Any] = {
    "look": {
        "turns": [
            *[{"tool_calls": [{"name": "look", "args": {"page": 10_000 + n}}]} for n in range(TURNS)],
            {"text": "seen"},
        ]
    }
}


@tool(effect="read")
async def look(page: int) -> str:
    """Looks."""
    return f"page {page}"


class CountingLog(MoodyLog):
    """Counts, by turn, what is written; and every read."""

    def __init__(self, inner: MemoryLog) -> None:
        super().__init__(inner)
        self.turns = 0
        self.written: Counter[tuple[int, str]] = Counter()
        self.reads: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if self.turns:
            self.reads.append(name)
        return super().__getattr__(name)

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        for write in writes:
            self.written[self.turns, "rows"] += 1 + len(write.items)
            self.written[self.turns, "bytes"] += len(write.state or b"")
            for item in write.items:
                self.written[self.turns, "entries"] += item.count
                self.written[self.turns, "bytes"] += len(item.head) + len(item.body)
                self.turns += item.kind == "turn.completed"
        return super().flush(writes)


@pytest.mark.requirement("run.cost.flat")
def test_the_thousandth_turn_writes_and_reads_what_the_tenth_does() -> None:
    """Its time is one of the numbers of `make bench`, which holds the engine to it."""
    store = MoodyStore(MemoryDisk())
    log = store.log = CountingLog(store.log._inner)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        it, provider = engine_on(store, SCRIPTS, tools={"look": look}, clock=WallClock(loop))
        async with it:
            space = await it.workspace("acme")
            asks = plan("look", ServerRef("look"))
            limits = replace(asks.limits, max_tool_turns=TURNS + 1, loop_soft=0)
            run_id = await it.create(space, replace(asks, limits=limits))
            await until(lambda: log.turns > TURNS)
            assert len(provider.requests) == TURNS + 1
            reads = list(log.reads)
            assert await it.locate(run_id, workspace=space)
            assert reads == [], "its request is made from what is in memory"

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
    for what in ("entries", "rows"):
        assert log.written[10, what] == log.written[TURNS - 10, what] > 0
    assert abs(log.written[10, "bytes"] - log.written[TURNS - 10, "bytes"]) < 40, "numbers have more digits"
